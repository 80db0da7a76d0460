"""The tuning script: right launches only, the table's own first, and bits told apart."""

import pytest
import torch

from gdn_apc.fuzz.bench import tune
from gdn_apc.fuzz.bench.peers import native
from gdn_apc.fuzz.bench.problems import Problem
from gdn_apc.impl.configs import Launch, config
from tests.benchmarks.small import CPU, interpreted

pytestmark = interpreted

SMALL = Problem("delta", 1, 2, (70,), block=32, K=16, V=32)
BASE = config(2, 32, torch.bfloat16, "interpreter").scan


def test_the_tables_launch_is_first():
    """Every combination once."""
    found = tune.candidates(Launch(32, 4, 1), {"tile": (16, 32), "num_warps": (4, 8)})
    assert found[0] == Launch(32, 4, 1)
    assert set(found[1:]) == {Launch(16, 4, 1), Launch(16, 8, 1), Launch(32, 8, 1)} and len(found) == 4
    with pytest.raises(ValueError, match="values: a launch has no width; it has tile, num_warps, num_stages"):
        tune.candidates(Launch(32, 4, 1), {"width": (1,)})


def test_a_sweep():
    """Each candidate is run as it says: a narrower tile of V too; all of them right."""
    found = list(tune.sweep("scan", SMALL, [BASE, Launch(16, 2, 1)], CPU))
    assert all(o.ms > 0 and o.error < 0.02 for o in found), found
    assert found[0].same_bits and "error" in found[0].line


def test_wrong_and_impossible_launches_are_rejected(monkeypatch):
    """By the oracle, or by Triton; the next candidate starts from clean pools."""
    real = native.impl.gated_delta_rule

    def spoiled(*arguments, **others):
        from gdn_apc.impl import configs

        o = real(*arguments, **others)
        return o * 1.5 if configs.config(2, 32, torch.bfloat16, "interpreter").scan.num_warps == 8 else o

    monkeypatch.setattr(native.impl, "gated_delta_rule", spoiled)
    wrong, impossible, right = tune.sweep("scan", SMALL, [Launch(32, 8, 1), Launch(24, 4, 1), BASE], CPU)
    assert wrong.ms is None and "relative error" in wrong.line and "rejected" in wrong.line
    assert impossible.ms is None and "Error" in impossible.why
    assert right.ms > 0 and right.same_bits


def test_other_bits_are_told():
    """A launch that rounds differently is right, and said to be different."""
    same, other = tune.Outcome(BASE, 1.0, 0.001, True), tune.Outcome(BASE, 1.0, 0.001, False)
    assert same.line.endswith("same bits") and other.line.endswith("OTHER bits")
    assert (
        tune._integers(torch.tensor([float("nan"), 1.0])).tolist()
        == tune._integers(torch.tensor([float("nan"), 1.0])).tolist()
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [("tile", "values: 'tile' is not a field and numbers"), ("tile=a", "values: 'tile=a' is not")],
)
def test_values(text, error):
    """A field and its numbers."""
    assert tune.parse_values(["tile=16,32", "num_warps=4"]) == {"tile": (16, 32), "num_warps": (4,)}
    with pytest.raises(ValueError, match=error):
        tune.parse_values([text])


def test_each_kernel_is_measured_where_it_runs():
    """The recurrent kernel in decode, the chunk kernels in the delta rule."""
    assert tune.problem("recurrent", "16x32/128x1", "bf16", "bf16", 1024).op == "decode"
    scan = tune.problem("scan", "4x8/2x100", "fp32", "bf16", 64)
    assert (scan.op, scan.H, scan.HV, scan.lengths, scan.block) == ("delta", 4, 8, (100, 100), 64)
    with pytest.raises(ValueError, match="shape: '16/32' is not heads and rows, like 16x32/1x8192"):
        tune.problem("scan", "16/32", "fp32", "bf16", 64)


def test_the_command(capsys):
    """It prints rows to paste, and refuses what it does not know."""
    small = ["--shape", "1x2/1x40", "--size", "16", "--block", "16"]
    assert tune.main(["gates", *small, "--values", "tile=16,32"]) == 0
    out = capsys.readouterr().out
    assert "gates=Launch(tile=" in out and "the table's:" in out
    with pytest.raises(SystemExit):
        tune.main(["scam"])
    assert "kernel: 'scam' is not known, expected some of conv," in capsys.readouterr().err
