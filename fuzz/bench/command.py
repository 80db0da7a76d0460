"""``gdn-apc bench``: its options, and what it leaves behind.

    .gdn-apc/bench/<time>/results.json     rows, and what they were measured on; written after every row
                          samples.json     every single time behind a median
                          benchmark.json   the same for pytest-benchmark's compare
                          RESULTS.md       goals, tables, the picture's place
                          time-against-length.png

Imports the standard library until the command runs. Exercise it with ``pytest tests/benchmarks/test_command.py``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]
AREAS = ("prefill", "decode", "metadata", "fuzz")
COMPILE_LIMIT_S = 240
"""Compiling ahead stops after so long; what is missing is compiled as it is measured."""
PICTURE = "time-against-length.png"
EXAMPLES = """\
examples:
  gdn-apc bench                                     all that makes sense here
  gdn-apc bench prefill --only delta/16x32/1x8192   one operation on one shape, every export and peer
  gdn-apc bench decode --impl native,vllm           some peers
  gdn-apc bench --list                              what would be measured
  gdn-apc bench --out DIR --resume                  go on where a run into DIR stopped
  gdn-apc bench --out tests/benchmarks              the results in the repository

peers are found where they are installed: vLLM also by GDN_APC_VLLM=DIR (gdn-apc fuzz --target vllm says how),
fla-core by PYTHONPATH, flash-qla and flashinfer-python by pip.

exit status: 0 measured; 1 a kernel of ours is wrong; 2 interrupted (what was measured is kept);
3 the campaign whose speed was to be measured did not hold; 4 bad usage, or nothing to measure"""


def add_to(commands: Any) -> None:
    """Register the command with argparse's ``commands``."""
    parser = commands.add_parser(
        "bench",
        help="how fast: against the floor, and against whoever is installed",
        description="Times every operation, side by side with its peers, after checking the answers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options(parser)
    parser.set_defaults(run=lambda given: run(given, parser))


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add = parser.add_argument
    add("areas", nargs="*", metavar="AREA", help=f"some of {', '.join(AREAS)} (default: all)")
    add(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="problems whose name has this in it, or matches it as a glob; may be repeated",
    )
    add(
        "--impl",
        metavar="A,B",
        help="peers (default on a GPU: native, vllm, fla, flashqla, flashinfer; on a CPU: native-torch)",
    )
    add("--quick", action="store_true", help="few shapes, short times: does it all work?")
    add("--list", action="store_true", help="print the names of the problems, and measure nothing")
    add("--out", type=Path, metavar="DIR", help="folder of the results (default: .gdn-apc/bench/<time>)")
    add("--resume", action="store_true", help="keep the rows that the folder has, and measure the others")
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that compile ahead (default on a GPU: two less than cores, at most 14; 0: none)",
    )
    add(
        "--minutes",
        type=float,
        metavar="M",
        help="length of the campaign that `fuzz` measures (default: 1; quick: 0.3)",
    )
    add("--target", default="native", metavar="NAME", help="target of that campaign (default: native)")
    add("-n", type=int, metavar="WORKERS", help="workers of that campaign")


def run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The command. Returns the exit status."""
    unknown = [area for area in given.areas if area not in AREAS]
    if unknown:
        parser.error(f"area: {unknown[0]!r} is not known, expected some of {', '.join(AREAS)}")
    import torch

    from gdn_apc.fuzz.bench.campaign import CampaignFailed
    from gdn_apc.fuzz.bench.problems import problems

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    areas = given.areas or list(AREAS)
    wanted = problems(areas, cpu=device.type == "cpu", quick=given.quick, only=given.only)
    with_fuzz = "fuzz" in areas and (
        not given.only or any("fuzz".startswith(o.split("/")[0]) for o in given.only)
    )
    if given.list:
        print("\n".join([p.name for p in wanted] + (["fuzz"] if with_fuzz else [])))
        return 0
    if not wanted and not with_fuzz:
        parser.error(
            f"only: no problem has {' or '.join(map(repr, given.only))} in its name; see gdn-apc bench --list"
        )
    folder = given.out or Path(".gdn-apc") / "bench" / time.strftime("%Y%m%d-%H%M%S")
    results = Results(folder, given.resume)
    status = 0
    try:
        if wanted:
            results.about |= about(device)
            _measure(wanted, _peers(given, device), device, given, results)
        if with_fuzz and not (given.resume and any(r["op"] == "fuzz" for r in results.rows)):
            _campaign(given, device, results)
    except CampaignFailed as e:
        print(f"not measured: {e}")
        status = 3
    except KeyboardInterrupt:
        print("interrupted: the rows so far are kept")
        status = 2
    results.write()
    _summary(results, device)
    wrong = any(r.get("wrong") for r in results.rows if r["impl"].startswith("native"))
    return status or (1 if wrong else 0)


class Results:
    """The rows of a folder: read if the run resumes or adds to them, written after every row."""

    def __init__(self, folder: Path, resume: bool):
        self.folder, self.rows, self.samples, self.about = folder, [], {}, {}
        self.fresh: set[tuple[str, str]] = set()
        folder.mkdir(parents=True, exist_ok=True)
        if resume and (folder / "results.json").is_file():
            document = json.loads((folder / "results.json").read_text())
            self.rows, self.about = document["rows"], document["about"]
            if (folder / "samples.json").is_file():
                self.samples = json.loads((folder / "samples.json").read_text())

    @property
    def done(self) -> set[tuple[str, str]]:
        """Rows that need not be measured again: those that have a time."""
        return {(r["name"], r["impl"]) for r in self.rows if r.get("ms")}

    def add(self, row: Row) -> None:
        """One more row, in the place of an older one of the same name."""
        at = row["name"], row["impl"]
        self.samples["|".join(at)] = row.pop("samples", [])
        self.rows = [r for r in self.rows if (r["name"], r["impl"]) != at] + [row]
        self._dump("results.json", {"about": self.about, "rows": self.rows})

    def write(self) -> None:
        """Everything that follows from the rows."""
        from gdn_apc.fuzz.bench import compare, plot, table

        drawn = plot.draw(self.rows, self.folder / PICTURE)
        document = {"about": self.about, "plot": PICTURE if drawn else None, "rows": self.rows}
        self._dump("results.json", document)
        self._dump("samples.json", self.samples)
        full = [r | {"samples": self.samples.get(f"{r['name']}|{r['impl']}")} for r in self.rows]
        self._dump("benchmark.json", compare.document(full, self.about))
        (self.folder / "RESULTS.md").write_text(table.markdown(document))

    def _dump(self, name: str, value: Any) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(value, indent=1) if name == "results.json" else json.dumps(value))
        part.replace(self.folder / name)


def about(device: Any) -> dict[str, str]:
    """What the rows were measured on."""
    import torch

    from gdn_apc.fuzz import runs
    from gdn_apc.fuzz.bench.run import device_name

    found = {"device": device_name(device), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    found |= {
        "revision": runs.revision(Path(__file__).parent) or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    try:
        found["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found["triton"] = "not installed"
    return found


def _peers(given: argparse.Namespace, device: Any) -> list[Any]:
    from gdn_apc.fuzz.bench import peers

    default = (
        ("native-torch",) if device.type == "cpu" else tuple(n for n in peers.BUILTIN if n != "native-torch")
    )
    names = given.impl.split(",") if given.impl else default
    if device.type == "cpu" and set(names) - {"native-torch"}:
        from gdn_apc.fuzz import interpreter

        interpreter.activate()
        print("no GPU: Triton's kernels are interpreted, so their answers count and their times do not")
    found = []
    for name in names:
        try:
            found.append(peers.load(name))
        except peers.Missing as e:
            print(e)
            if given.impl:
                sys.exit(4)
    return found


def _measure(
    wanted: list[Any], peers: list[Any], device: Any, given: argparse.Namespace, results: Results
) -> None:
    from gdn_apc.fuzz.bench.run import rows

    results.about["peers"] = ", ".join(f"{p.name} {p.version()}" for p in peers)
    print(f"{len(wanted)} problems on {results.about['device']}: {results.about['peers']}", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)

    done = results.done if given.resume else set()
    left = [p for p in wanted if any((p.name, peer.name) not in done for peer in peers)]
    _compile(left, peers, device, given.jobs)
    for row in rows(wanted, peers, device, done=done, quick=given.quick, say=say):
        results.add(row)


def _compile(wanted: list[Any], peers: list[Any], device: Any, jobs: int | None) -> None:
    from gdn_apc.fuzz import children
    from gdn_apc.fuzz.bench import ahead

    if jobs is None:
        jobs = max(0, min(14, (os.cpu_count() or 1) - 2)) if device.type == "cuda" else 0
    todo = ahead.tasks(wanted, peers, device) if jobs else []
    if todo:
        print(f"compiling ahead: {len(todo)} tasks in {jobs} processes …", flush=True)
        seconds = children.share_out(ahead.compile_one, todo, jobs, COMPILE_LIMIT_S)
        print(f"compiled in {seconds:.0f} s", flush=True)


def _campaign(given: argparse.Namespace, device: Any, results: Results) -> None:
    from gdn_apc.fuzz.bench import campaign
    from gdn_apc.fuzz.bench.run import device_name

    minutes = given.minutes or (0.3 if given.quick else 1.0)
    print(f"a campaign of {minutes:g} minutes …", flush=True)
    folder = (results.folder / f"campaign-{time.strftime('%H%M%S')}").absolute()
    events = campaign.run(folder, target=given.target, minutes=minutes, workers=given.n)
    row = campaign.row(events, device_name(device), given.n)
    results.about.setdefault("device", row["device"])
    print(campaign.line(row), flush=True)
    results.add(row)


def _summary(results: Results, device: Any) -> None:
    """The goals, and where everything is."""
    from gdn_apc.fuzz.bench.goals import verdicts

    found = verdicts(results.rows)
    measured = [v for v in found if v.met is not None]
    print()
    for v in measured:
        print(f"{v.word:8} {v.goal}: {v.detail}")
    missing = len(found) - len(measured)
    if device.type == "cpu":
        print("the goals of speed are for a GPU: none is judged here")
    elif missing:
        print(f"{missing} goals were not measured")
    print(f"results: {results.folder / 'RESULTS.md'}")
