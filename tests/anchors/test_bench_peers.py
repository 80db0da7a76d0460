"""vLLM as a peer of ``gdn-apc bench``: its kernels, called as its layer calls them, give the oracle's answers."""

import pytest
from anchoring import anchored

from gdn_apc.fuzz.bench import peers, run
from gdn_apc.fuzz.bench.problems import IN_PLACE
from tests.benchmarks.small import CPU, DECODES, LAST, METADATA, PREFILLS

pytestmark = pytest.mark.anchor


@pytest.fixture(scope="module")
def vllm():
    """The adapter, with a vLLM that can be loaded."""
    return anchored(lambda: peers.load("vllm"))


IN_PLACES = [p for p in DECODES if p.variant == IN_PLACE]


@pytest.mark.parametrize("problem", [*PREFILLS, LAST, *IN_PLACES], ids=lambda p: p.name)
def test_vllm(problem, vllm):
    """Convolution, gates, chunk kernels, all of them, and the fused decode."""
    assert vllm.solves(problem, CPU)
    [row] = list(run.rows([problem], [vllm], CPU, quick=True))
    assert row["ms"] and row["ms"] > 0 and row["error"] < 0.015, row


def test_what_vllm_has_not(vllm):
    """Its decode works in place, its builder is not measured."""
    assert not any(vllm.solves(p, CPU) for p in DECODES if p.variant != IN_PLACE)
    assert not vllm.solves(METADATA, CPU)
