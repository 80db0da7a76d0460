"""Direct launches take the compiled kernel that Triton would take, or go through Triton."""

import pytest
import torch

from gdn_apc.impl import triton_path
from gdn_apc.impl.kernels import chunked, conv, gates, recurrent
from gdn_apc.impl.launch import Launcher
from tests.impl.batches import DEVICE


class Compiled:
    """What a launch through Triton returns."""

    def __init__(self, log):
        self.log = log

    def __getitem__(self, grid):
        return lambda *arguments: self.log.append(("direct", self, grid, arguments))


class Kernel:
    """A kernel of two pointers, a stride, a count and two constants, compiled anew at each launch through Triton."""

    arg_names = ("x", "y", "stride", "count", "BT", "BD")
    do_not_specialize = ("count",)

    def __init__(self, log, interpreted=False):
        self.log, self.interpreted = log, interpreted

    def __getitem__(self, grid):
        def run(*arguments, **keywords):
            self.log.append(("triton", None, grid, arguments, keywords))
            return None if self.interpreted else Compiled(self.log)

        return run


@pytest.fixture
def log():
    return []


@pytest.fixture
def launch(log):
    """A launcher whose constants come in another order than the kernel's."""
    return Launcher(Kernel(log), dict(BD=8, BT=4), dict(num_warps=2))


X = torch.zeros(64)
GRID = (1, 2, 3)


def test_the_second_launch_is_direct(launch, log):
    """Addresses instead of tensors, and the constants in the kernel's order."""
    launch(GRID, (X, X), (16, 5))
    launch(GRID, (X, X), (16, 7))
    assert log[0] == ("triton", None, GRID, (X, X, 16, 5), dict(BT=4, BD=8, num_warps=2))
    how, _, grid, arguments = log[1]
    assert (how, grid) == ("direct", GRID)
    assert arguments == (X.data_ptr(), X.data_ptr(), 16, 7, 4, 8)


@pytest.mark.parametrize("numbers", [(1, 5), (17, 5), (1 << 33, 5)], ids=["one", "odd", "wide"])
def test_another_stride_is_another_kernel(launch, log, numbers):
    """Triton specialises on 1, on multiples of 16 and on the width: a stride is found by its value."""
    launch(GRID, (X, X), (16, 5))
    launch(GRID, (X, X), numbers)
    assert [entry[0] for entry in log] == ["triton", "triton"]
    launch(GRID, (X, X), (16, 6))
    launch(GRID, (X, X), numbers)
    assert [entry[0] for entry in log[2:]] == ["direct", "direct"]
    assert log[2][1] is not log[3][1]


def test_a_wide_count_goes_through_triton(launch, log):
    """An unspecialised number is compiled for 32 bits; one beyond them is not cut off."""
    launch(GRID, (X, X), (16, 5))
    launch(GRID, (X, X), (16, 1 << 31))
    launch(GRID, (X, X), (16, (1 << 31) - 1))
    assert [entry[0] for entry in log] == ["triton", "triton", "direct"]


def test_an_odd_address_goes_through_triton(launch, log):
    """A kernel compiled for aligned addresses is not launched with others, nor the other way round."""
    assert X[1:].data_ptr() % 16
    for tensors in ((X, X), (X, X[1:]), (X, X[4:]), (X[1:], X)):
        launch(GRID, tensors, (16, 5))
    assert [entry[0] for entry in log] == ["triton", "triton", "direct", "triton"]


def test_the_interpreter_is_launched_the_ordinary_way(log):
    """It returns nothing that could be launched."""
    launch = Launcher(Kernel(log, interpreted=True), dict(BT=4, BD=8), {})
    for _ in range(3):
        launch(GRID, (X, X), (16, 5))
    assert [entry[0] for entry in log] == ["triton"] * 3


@pytest.mark.parametrize(
    "kernel",
    [
        conv.causal_conv1d_kernel,
        gates.gates_kernel,
        recurrent.recurrent_kernel,
        chunked.prepare_kernel,
        chunked.scan_kernel,
    ],
    ids=lambda kernel: kernel.fn.__name__,
)
def test_constants_come_last(kernel):
    """A direct launch passes pointers, numbers and constants in this order, so a kernel must take them so."""
    annotations = kernel.fn.__annotations__
    constant = ["constexpr" in str(annotations.get(name, "")) for name in kernel.arg_names]
    assert any(constant) and constant == sorted(constant)


def test_plans_tell_dtypes_apart():
    """Two dtypes of any tensor never share a launcher: pointers carry no dtype."""
    x, gate = torch.zeros(1, 2, device=DEVICE), torch.zeros(2, device=DEVICE)
    for a, rate in ((x, gate), (x.half(), gate), (x, gate.half())):
        triton_path.gdn_gates(a, a, rate, rate)
    assert {key[1:5] for key in triton_path._plans if key[0] == "gates"} >= {
        (torch.float32,) * 4,
        (torch.float16,) * 2 + (torch.float32,) * 2,
        (torch.float32,) * 2 + (torch.float16,) * 2,
    }
