"""``gdn-apc mutants --measure-shrinking``: its table, and one real hunt. ``pytest tests/fuzz/test_measure.py``."""

import pytest

from gdn_apc.fuzz import cli
from gdn_apc.fuzz.mutants import measure
from gdn_apc.fuzz.mutants.model import KINDS


def result(mutant="a", seed=0, status="killed", tokens=1, seconds=2.0, **more):
    return {
        "mutant": mutant, "seed": seed, "status": status, "by": "values", "first_tokens": 40, "requests": 1, "steps": 2,
        "tokens": tokens, "shrink_seconds": seconds, "attempts": 30, **more,
    }  # fmt: skip


def test_there_are_ten_faults_one_of_each_kind():
    assert [m.kind for m in measure.ten()] == list(KINDS) and len(KINDS) == 10


def test_the_table_has_medians_of_each_fault_and_of_all():
    """Over the seeds; a hunt that found nothing is said, not averaged."""
    results = [result(tokens=t, seed=i, seconds=float(t)) for i, t in enumerate((1, 3, 9))]
    results += [result("b", tokens=5), result("b", 1, status="survived", tokens=0)]

    text = measure.table(results, {"torch": "2.13.0", "machine": "Linux"})

    assert "| a | values | 40 | 1 | 2 | 3 | 30 | 3 |" in text
    assert "| b | values | 40 | 1 | 2 | 5 | 30 | 2 |" in text
    assert "| **all** |  | **40** | **1** | **2** | **4** | **30** | **2.5** |" in text
    assert "over the seeds 0, 1, 2; the last one is over all 4 hunts" in text
    assert "1 of 5 hunts did not find their fault." in text


def test_lines_say_sizes_and_time():
    assert measure.line(result()).endswith(
        "seed 0: 40 tokens shrunk to 1, 1 requests, 2 steps, in 2.0 s and 30 checks"
    )
    assert measure.line(result(status="survived")).endswith("seed 0: survived")


def test_a_fault_is_hunted_and_its_shrinking_measured(tmp_path, capsys):
    """The command, on the fault that is found fastest."""
    written = tmp_path / "table.md"
    command = ["mutants", "--measure-shrinking", "1", "--only", "last_computed_next"]

    assert cli.main([*command, "--run-dir", str(tmp_path / "run"), "--write", str(written)]) == 0

    said = capsys.readouterr().out
    assert "last_computed_next" in said and "1 steps, in" in said
    row = next(line for line in written.read_text().splitlines() if line.startswith("| last_computed_next"))
    cells = [c.strip() for c in row.split("|")[1:-1]]
    assert cells[1] == "metadata" and float(cells[2]) > 100 * float(cells[5]) > 0 and float(cells[6]) >= 1


def test_an_unknown_fault_is_refused():
    with pytest.raises(ValueError, match="mutant: 'nobody' is not in the catalogue"):
        measure.chosen(["nobody"])
