"""The peers' adapters ask for the right thing: their answers are the oracle's. vLLM's is in tests/anchors."""

import pytest

from gdn_apc.fuzz.bench import peers, run
from gdn_apc.fuzz.bench.problems import Problem
from tests.benchmarks.small import CPU, DECODES, LAST, METADATA, PREFILLS, interpreted

pytestmark = interpreted


def test_unknown_and_absent_peers(monkeypatch):
    """What can be chosen, or what to install."""
    with pytest.raises(
        peers.Missing, match="peer: 'mine' is not known; choose some of native, native-torch, vllm"
    ):
        peers.load("mine")
    with pytest.raises(peers.Missing, match="peer: 'no_such:Thing' cannot be imported"):
        peers.load("no_such:Thing")
    with pytest.raises(
        peers.Missing, match=r"peer: 'flashqla' cannot run here: .*pip install flash-qla==0.1.3"
    ):
        peers.load("flashqla")
    monkeypatch.setenv("GDN_APC_VLLM", "/nowhere")
    with pytest.raises(peers.Missing, match=r"peer: 'vllm' cannot run here: .* holds no vllm package"):
        peers.load("vllm")


def test_a_peer_of_ones_own():
    """Any class with the interface, as module:class."""
    mine = peers.load("gdn_apc.fuzz.bench.peers.native:NativeTorch")
    assert mine.name == "native-torch" and mine.solves(LAST, CPU)


def test_fla():
    """fla-core's chunk kernels, through the interpreter: outputs, and the last state of each row."""
    try:
        fla = peers.load("fla")
    except peers.Missing as e:
        pytest.skip(str(e))
    for problem in (PREFILLS[0], LAST):
        [row] = list(run.rows([problem], [fla], CPU, quick=True))
        assert row["ms"] > 0 and row["error"] < 0.01, row
    assert not fla.solves(METADATA, CPU) and not fla.solves(DECODES[0], CPU)
    assert not fla.solves(Problem("delta", 1, 2, (5,), dtype="fp32"), CPU)
