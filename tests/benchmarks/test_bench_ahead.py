"""Compiling ahead: each shape class once, shares that add up, and nothing left changed."""

from types import SimpleNamespace

import pytest

from gdn_apc.fuzz.bench import ahead, peers
from gdn_apc.fuzz.bench.problems import Problem, problems
from tests.benchmarks.small import CPU, DECODES, LAST, PREFILLS, interpreted

pytestmark = interpreted


def test_short_rows_keep_what_kernels_specialise_on():
    """Remainders by 16, and the number of rows; decodes are as they are."""
    ragged = ahead.short(Problem("delta", 16, 32, (1, 63, 64, 1000, 5000, 2068)))
    assert ragged.lengths == (1, 63, 64, 136, 136, 132) and ragged.tokens % 16 == 8196 % 16
    assert ahead.short(Problem("delta", 16, 32, (8192,) * 3)).lengths == (128,) * 3
    assert ahead.short(DECODES[0]) is DECODES[0]


def test_each_shape_class_once():
    """A handful of tasks for the whole bench, each peer's where it has the operation, shares of vLLM's."""
    everything = problems(["prefill", "decode"], cpu=False, quick=False, only=[])

    def peer(name, ours, *ops):
        return SimpleNamespace(name=name, ours=ours, solves=lambda problem, device: problem.op in ops)

    peers = [
        peer("native", True, "delta", "core"),
        peer("vllm", False, "delta", "core"),
        peer("fla", False, "delta"),
    ]
    found = ahead.tasks(everything, peers, CPU)
    assert len(found) == len(set(found)) < 80
    ours = [t for t in found if t.peer == "native"]
    assert all(t.shares == 1 for t in ours) and {t.problem.heads for t in ours} == {
        "16/32",
        "16/48",
        "16/64",
        "4/8",
    }
    assert {t.problem.block for t in ours} == {1024, None} and {t.problem.op for t in ours} == {
        "delta",
        "core",
    }
    theirs = [t for t in found if t.peer == "vllm" and t.problem.heads == "4/8"]
    assert [(t.problem.op, t.share) for t in theirs] == [("core", i) for i in range(4)], (
        "a core has its parts' kernels"
    )
    assert {t.problem.op for t in found if t.peer == "fla"} == {"delta"}


def test_a_task_runs_the_peer():
    """Through the interpreter here: it is the same call."""
    ahead.compile_one(ahead.Task("native", ahead.short(PREFILLS[0])))
    with pytest.raises(peers.Missing):
        ahead.compile_one(ahead.Task("mine", LAST))


def test_shares_of_an_autotuned_kernel():
    """Inside, a third of the configurations and no timing; outside, all as before."""
    import triton

    @triton.autotune([triton.Config({"N": n}) for n in range(7)], key=[])
    @triton.jit
    def kernel(x, N: triton.language.constexpr):
        pass

    if not hasattr(kernel, "configs"):
        pytest.skip("the interpreter took the autotuner away")
    before = list(kernel.configs)
    seen = []
    for share in range(3):
        with ahead._Share(share, 3):
            assert kernel.do_bench(lambda: None, quantiles=(0.5, 0.2, 0.8)) == [1.0, 1.0, 1.0]
            seen += kernel.configs
    assert sorted(c.kwargs["N"] for c in seen) == list(range(7))
    assert kernel.configs == before and "do_bench" not in vars(kernel)
    with ahead._Share(9, 10):
        assert kernel.configs == before[:1], "never none at all"
