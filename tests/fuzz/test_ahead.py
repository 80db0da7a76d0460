"""Compiling ahead: one case of each kind, frequent kinds first; children share the work, and end."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gdn_apc.fuzz import ahead, children, targets
from gdn_apc.fuzz.floors import Drawn


def leave_a_file(path: str) -> None:
    """A task: one file, by whom; or a failure; or no end."""
    if path == "fails":
        raise RuntimeError("broken")
    if path == "stays":
        time.sleep(3600)
    Path(path).write_text(str(os.getpid()))


def test_children_share_the_work_and_end(tmp_path):
    """Each task is done once, by children; one that fails stops nobody."""
    tasks = [str(tmp_path / f"{i}") for i in range(5)]
    assert children.share_out(leave_a_file, [*tasks[:2], "fails", *tasks[2:]], 2, 60) < 60
    by = {Path(t).read_text() for t in tasks}
    assert by and str(os.getpid()) not in by


def test_children_end_when_time_is_up(tmp_path):
    """With tasks left, more of them than a pipe holds."""
    assert children.share_out(leave_a_file, ["stays", *["x" * 1000] * 1000], 1, 3) < 20


def test_kinds_are_told_apart_by_what_is_compiled():
    """Not by lengths, blocks or values; the case with the fewest tokens stands for a kind, frequent kinds come first."""
    cases = ahead.drawn(Drawn("cuda"), rounds=1)
    assert {c.level for c in cases} >= {"conv", "delta", "core"}
    kept = ahead.representatives(cases)
    kinds = [ahead.kind(c) for c in cases]
    assert len({ahead.kind(c) for c in kept}) == len(kept) == len(set(kinds))
    counts = [kinds.count(ahead.kind(c)) for c in kept]
    assert counts == sorted(counts, reverse=True)
    for one in kept:
        assert ahead.tokens(one) == min(ahead.tokens(c) for c in cases if ahead.kind(c) == ahead.kind(one))
    one = kept[0]
    assert ahead.kind(replace(one, sizes=replace(one.sizes, B=one.sizes.B + 1))) == ahead.kind(one)
    assert ahead.kind(replace(one, inputs=replace(one.inputs, seed=1))) == ahead.kind(one)
    for other in (
        replace(one, sizes=replace(one.sizes, K=8)),
        replace(one, dtypes=replace(one.dtypes, state="fp64")),
        replace(one, pool=replace(one.pool, channel_major=not one.pool.channel_major)),
    ):
        assert ahead.kind(other) != ahead.kind(one)


def test_a_task_runs_the_target():
    """Every step of a case; a target that is not there is an error."""
    case = ahead.drawn(targets.load("native-torch"), rounds=1)[0]
    ahead.run(("native-torch", case))
    with pytest.raises(targets.TargetUnavailable):
        ahead.run(("nobody", case))


def test_the_command(capsys):
    """It says what it does, and what is missing."""
    assert ahead.main(["native-torch", "-n", "1", "--seconds", "2", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "kinds of cases in 1 processes" in out and "compiled in" in out
    assert ahead.main(["nobody"]) == 4
    assert "'nobody' is not known" in capsys.readouterr().err
