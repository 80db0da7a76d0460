"""Kernel configurations are static, and keep clear of what the compiler gets wrong."""

import inspect

import pytest
import torch

from gdn_apc.impl.configs import Launch, config, next_power_of_two, override

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def test_a_configuration_cannot_see_the_batch():
    """Only the shape class goes in: no batch, no length, no pool (DESIGN.md, section 4.1)."""
    assert list(inspect.signature(config).parameters) == ["HV", "V", "dtype", "arch"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1, 16, 32, 64, 80, 128, 256])
@pytest.mark.parametrize("HV", [1, 8, 16, 17, 64])
def test_tiles_on_a_gpu(HV, V, dtype, arch):
    """Powers of two, none wider than the heads need, and never the narrow tile that was miscompiled in ``prepare``."""
    found = config(HV, V, dtype, arch)
    assert found.prepare.tile >= 64
    for launch in (found.scan, found.recurrent):
        assert launch.tile == next_power_of_two(launch.tile) <= next_power_of_two(max(V, 16))


@pytest.mark.parametrize("V", [1, 16, 24, 256])
def test_the_interpreter_takes_whole_heads(V):
    """There, an operation costs the same at any width."""
    found = config(4, V, torch.float32, "interpreter")
    assert found.prepare.tile == found.scan.tile == found.recurrent.tile >= V


def test_a_launch_is_overridden_and_comes_back():
    """The tuning script changes one kernel's launch, for as long as it looks."""
    shape_class = 32, 128, torch.bfloat16, "sm_90"
    before = config(*shape_class)
    with override(scan=Launch(64, 8, 3)):
        with override(conv=Launch(256, 4, 1)):
            assert config(*shape_class).conv == Launch(256, 4, 1)
            assert config(*shape_class).scan == Launch(64, 8, 3)
        assert config(*shape_class).conv == before.conv
    assert config(*shape_class) == before


def test_an_unknown_kernel_is_not_overridden():
    """A name that no kernel has would change nothing, silently."""
    with pytest.raises(TypeError, match="override: no kernel is called scam; expected some of conv, "):
        with override(scam=Launch(64, 8, 3)):
            pass
