"""Bisecting over the revisions of a git checkout, in a worktree of its own: the checkout is not touched.

Both ends are tried first; then ``git bisect run`` drives ``python -m gdn_apc.fuzz.triage.revisions``, which tries one
revision: status 0 good, 1 bad (crashes and hangs too), 125 untestable. Results are kept by commit.

Imports the standard library. Exercise it with ``pytest tests/fuzz/test_bisect.py -k git``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.triage.bisect import Found, NoBisection, Record
from gdn_apc.fuzz.triage.trial import BAD, GOOD, UNTESTABLE, Verdict, attempt


def git(folder: Path, *arguments: str) -> str:
    """Run git and return what it printed. Raises :class:`NoBisection` with git's own words."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBisection(
            f"git {' '.join(arguments)} in {folder}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(repo: Path, revision: str) -> Iterator[Path]:
    """A worktree of ``repo`` at a revision, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="gdn-apc-bisect-") as scratch:
        folder = Path(scratch) / repo.resolve().name
        git(repo, "worktree", "add", "--detach", str(folder), revision)
        try:
            yield folder
        finally:
            git(repo, "worktree", "remove", "--force", str(folder))


def environment(folder: Path, scratch: Path) -> dict[str, str]:
    """The environment in which targets find the checkout in ``folder``.

    A vLLM checkout is named by ``GDN_APC_VLLM``; our own gives its ``impl`` to the suite that runs now; any other is put
    first on the path, with its ``src`` if it has one.
    """
    if (folder / "vllm" / "__init__.py").is_file():
        return {**os.environ, "GDN_APC_VLLM": str(folder)}
    paths = [str(folder)]
    if (folder / "impl" / "kernels").is_dir() and (folder / "oracle").is_dir():
        package = scratch / "gdn_apc"
        package.mkdir(parents=True, exist_ok=True)
        for name in ("fuzz", "oracle", "spec", "impl"):
            spec = importlib.util.find_spec(f"gdn_apc.{name}")
            here = Path(spec.origin).parent if spec and spec.origin else None
            link = package / name
            if link.is_symlink():
                link.unlink()
            if name == "impl" or here is not None:
                link.symlink_to(folder / "impl" if name == "impl" else here)
        paths = [str(scratch)]
    elif (folder / "src").is_dir():
        paths.insert(0, str(folder / "src"))
    old = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *([old] if old else [])])}


def try_here(folder: Path, settings: dict[str, Any], record: Record) -> Verdict:
    """Try the revision that is checked out in ``folder``."""
    commit = git(folder, "rev-parse", "HEAD")
    if commit in record.results:
        return record.results[commit]
    if settings["setup"]:
        done = subprocess.run(
            settings["setup"], shell=True, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["nothing was said"]
            verdict = Verdict(UNTESTABLE, f"setup failed with status {done.returncode}: {last[0]}")
            record.add(commit, verdict)
            return verdict
    with tempfile.TemporaryDirectory(prefix="gdn-apc-path-") as scratch:
        verdict = attempt(
            Path(settings["case"]),
            settings["target"],
            environment(folder, Path(scratch)),
            folder,
            settings["seconds"],
        )
    record.add(commit, verdict)
    return verdict


def search(
    repo: Path,
    good: str,
    bad: str,
    settings: dict[str, Any],
    record: Record,
    say: Callable[[str], None] = print,
) -> Found:
    """The first bad commit between two revisions, both proven first. Raises :class:`NoBisection`."""
    ends = {
        GOOD: git(repo, "rev-parse", f"{good}^{{commit}}"),
        BAD: git(repo, "rev-parse", f"{bad}^{{commit}}"),
    }
    count = int(git(repo, "rev-list", "--count", f"{ends[GOOD]}..{ends[BAD]}"))
    if count == 0:
        raise NoBisection(f"{bad} is not later than {good}: there is no commit between them")
    if record.resumed:
        say(f"going on with {record.resumed} result(s) of {record.path}")
    with worktree(repo, ends[BAD]) as folder:
        for word, commit in ends.items():
            git(folder, "checkout", "--detach", "--quiet", commit)
            say(f"  {_name(repo, commit)}: trying (the {word} end) …")
            verdict = try_here(folder, settings, record)
            say(f"  {_name(repo, commit)}: {verdict.word}, {verdict.says} ({verdict.seconds:g} s)")
            if verdict.word != word:
                raise NoBisection(
                    f"{_name(repo, commit)}: was given as {word}, and is {verdict.word} ({verdict.says}); choose another end"
                )
        first = _run(folder, ends, settings, record, say)
        candidates = [] if first else _left(folder)
    order = [ends[GOOD], *git(repo, "rev-list", "--reverse", f"{ends[GOOD]}..{ends[BAD]}").split()]
    tried = {_name(repo, c): record.results[c] for c in order if c in record.results}
    if not first:
        names = ", ".join(_name(repo, c) for c in candidates)
        raise NoBisection(f"only untestable commits are left; the first bad one is one of: {names}")
    parent = git(repo, "rev-parse", f"{first}^")
    return Found(_name(repo, first), _name(repo, parent), False, len(tried), count + 1, [], tried)


def _run(
    folder: Path, ends: dict[str, str], settings: dict[str, Any], record: Record, say: Callable[[str], None]
) -> str:
    """``git bisect run`` to its end; the first bad commit, or nothing if only untestable ones are left."""
    git(folder, "bisect", "start", ends[BAD], ends[GOOD])
    passed = json.dumps({**settings, "record": str(record.path), "about": record.about})
    command = [sys.executable, "-m", "gdn_apc.fuzz.triage.revisions", passed]
    child = subprocess.Popen(
        ["git", "bisect", "run", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    first = ""
    for line in child.stdout:
        if line.startswith("TRIED "):
            say(f"  {line.removeprefix('TRIED ').rstrip()}")
        found = re.match(r"([0-9a-f]{40}) is the first bad commit", line)
        first = found.group(1) if found else first
    child.wait()
    record.__init__(record.path, record.about)  # the children wrote to it
    return first


def _left(folder: Path) -> list[str]:
    """The commits among which a search with untestable ones ended."""
    good = [
        r
        for r in git(folder, "for-each-ref", "--format=%(objectname) %(refname)", "refs/bisect").splitlines()
    ]
    goods = [line.split()[0] for line in good if "/good-" in line]
    return git(folder, "rev-list", "refs/bisect/bad", *(f"^{g}" for g in goods)).split()


def _name(repo: Path, commit: str) -> str:
    return git(repo, "log", "-1", "--format=%h %s", commit)[:80]


def main(settings: dict[str, Any]) -> int:
    """What ``git bisect run`` calls, in the worktree."""
    folder = Path.cwd()
    record = Record(Path(settings["record"]), settings["about"])
    verdict = try_here(folder, settings, record)
    print(
        f"TRIED {_name(folder, 'HEAD')}: {verdict.word}, {verdict.says[:150]} ({verdict.seconds:g} s)",
        flush=True,
    )
    return verdict.status


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
