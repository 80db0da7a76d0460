"""The options of a campaign, once, for pytest and for ``gdn-apc fuzz``.

pytest gets them namespaced (``--gdn-budget``); our own checkout and the command line also know the short forms.
Imports the standard library only: the pytest plugin loads this in every adopter's session. Exercise it with
``pytest tests/fuzz/test_plugin.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SMOKE_SECONDS = 60.0  # from the command's start to its end


@dataclass(frozen=True)
class Option:
    """One option. ``dest`` is ``gdn_<name>``; ``short`` says whether ``--<name>`` exists too."""

    name: str
    help: str
    keywords: dict[str, Any]
    short: bool = True


OPTIONS = (
    Option("target", "implementation under test: native, native-torch, vllm, or module:attribute of your own "
           "(default: native)", {"metavar": "NAME"}),
    Option("budget", "examples of each kernel property (default: enough for a complete campaign)",
           {"type": int, "metavar": "N"}),
    Option("minutes", "end after this long, start and reports included, instead of counting examples",
           {"type": float, "metavar": "M"}),
    Option("smoke", "a fixed seed and about a minute; always incomplete (exit status 5)",
           {"action": "store_true"}),
    Option("seed", "seed of every property, shard and round (default: a new one, which is printed)",
           {"type": int, "metavar": "S"}),
    Option("property", "only this property; may be repeated; makes the campaign incomplete",
           {"action": "append", "metavar": "NAME"}, short=False),
    Option("expect", "known failures with reasons, a TOML file (fuzz/expectations.py); may be repeated; one that no longer "
           "fails is an error", {"action": "append", "metavar": "FILE"}, short=False),
    Option("baseline", "known failures that may be mended: others fail the campaign", {"metavar": "FILE"},
           short=False),
    Option("write-baseline", "write every kind of failure that is met to this file, to be given as --baseline",
           {"metavar": "FILE"}, short=False),
    Option("run-dir", "folder of this run, which must be new (default: .gdn-apc/runs/<time>)",
           {"metavar": "DIR"}, short=False),
    Option("resume", "go on with the campaign in this folder where it was stopped or killed; its options hold, "
           "--minutes or --budget may be given anew", {"metavar": "RUN_DIR"}, short=False),
    Option("shard", "only the I-th of N shards of every property: one for each machine; "
           "`gdn-apc report --into` makes one report of them", {"metavar": "I/N"}, short=False),
    Option("database", "share failing examples with other machines, redis://HOST:PORT/0 "
           "(default: $GDN_APC_DATABASE, else only .gdn-apc/examples)", {"metavar": "URL"}, short=False),
    Option("profile", "fuzz: random, failing examples kept (default); gate: the same cases every time",
           {"choices": ["fuzz", "gate"]}, short=False),
)  # fmt: skip

EXAMPLES = (
    ("{run}", "the default campaign, at most 5 minutes on 2 cores"),
    ("{run} --{p}smoke", "a minute, with a fixed seed"),
    ("{run} --{p}target vllm -n 4", "another implementation, four workers (pytest-xdist)"),
    ("{run} --{p}minutes 60 --{p}seed 7", "search for an hour, reproducibly"),
    ("{run} --{p}resume .gdn-apc/runs/TIME", "go on after a kill, a full disk, or a power cut"),
    ("{run} --{p}target vllm --gdn-baseline red.toml", "fail on new failures only"),
    ("gdn-apc replay CASE.json", "run one case again"),
)

STATUSES = """\
exit status: 0 every property held and the campaign is complete; 1 a property failed; 2 interrupted;
3 the suite itself broke; 4 bad usage, or the target cannot run here; 5 incomplete (reduced budget or
selection, or nothing compared)"""


def examples(run: str, prefix: str, explained: bool = True) -> str:
    """The examples of the help text, for a command and its prefix of options."""
    lines = [(command.format(run=run, p=prefix), what) for command, what in EXAMPLES]
    width = max(len(command) for command, _ in lines)
    return "\n".join(
        f"  {command:{width}}  {what}" if explained else f"  {command}" for command, what in lines
    )


def add_namespaced(add: Callable[..., None]) -> None:
    """``--gdn-<name>`` for each option, with pytest's ``group.addoption``."""
    for option in OPTIONS:
        text = option.help
        if option.name == "target":
            text += "\nexamples:\n" + examples("pytest -m fuzz", "gdn-", explained=False) + "\n" + STATUSES
        keywords = {"default": None, **option.keywords, "dest": dest(option.name)}
        if option.keywords.get("action") == "store_true":
            keywords["default"] = False
        add(f"--gdn-{option.name}", help=text, **keywords)


def add_short(add: Callable[..., None]) -> None:
    """``--<name>`` for the options that have a short form; they set the same values."""
    for option in OPTIONS:
        if option.short:
            keywords = {**option.keywords, "dest": dest(option.name)}
            add(f"--{option.name}", help=f"short for --gdn-{option.name}", **keywords)


def dest(name: str) -> str:
    """The attribute that holds an option's value."""
    return f"gdn_{name.replace('-', '_')}"


def command_line(values: dict[str, Any]) -> list[str]:
    """The namespaced arguments that set ``values`` (by dest); None and False are left out."""
    arguments = []
    for option in OPTIONS:
        value = values.get(dest(option.name))
        if value is True:
            arguments.append(f"--gdn-{option.name}")
        elif isinstance(value, list):
            arguments += [f"--gdn-{option.name}={v}" for v in value]
        elif value is not None and value is not False:  # a seed of 0 is a seed
            arguments.append(f"--gdn-{option.name}={value}")
    return arguments


def problem(values: dict[str, Any]) -> str | None:
    """What is wrong with a combination of values, or None."""
    budget, minutes, smoke = (values.get(dest(n)) for n in ("budget", "minutes", "smoke"))
    asked = {"budget": budget is not None, "minutes": minutes is not None, "smoke": bool(smoke)}
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        return f"{' and '.join(given)}: give one of them; each says how much to run"
    if budget is not None and budget < 1:
        return f"budget: {budget} is too small, expected at least 1 example"
    if minutes is not None and not minutes > 0:
        return f"minutes: {minutes:g} is too short, expected more than 0"
    if values.get("gdn_resume") and values.get("gdn_run_dir"):
        return "run-dir: given with resume, which already names the folder; leave it out"
    return shard_problem(values.get("gdn_shard"))


def shard_problem(text: str | None) -> str | None:
    """What is wrong with a shard ``I/N``, or None."""
    if text is None:
        return None
    first, slash, count = text.partition("/")
    if slash and first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count):
        return None
    return f"shard: {text!r} is none, expected I/N with 1 <= I <= N, such as 2/8"


def shard(text: str) -> tuple[int, int]:
    """Index from 0, and count, of a shard ``I/N``."""
    first, _, count = text.partition("/")
    return int(first) - 1, int(count)
