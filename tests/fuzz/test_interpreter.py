"""Activation: switches, versions, and what is refused. Exercise it with ``pytest tests/fuzz/test_interpreter.py``."""

import json
import subprocess
import sys

import pytest
import torch

from gdn_apc.fuzz import interpreter
from gdn_apc.fuzz.interpreter._settings import SETTINGS, check_version

interpreter.activate()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def _add(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def _product(a, b, out, N: tl.constexpr, PRECISION: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(
        out + i * N + j, tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j), input_precision=PRECISION)
    )


@triton.jit
def _unmasked(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, mask=i < n))


@pytest.fixture(autouse=True)
def usual_switches():
    """Every test ends with the switches as they are by default."""
    yield
    interpreter.activate()


def test_importing_the_package_imports_neither_torch_nor_triton():
    """The pytest plugin may import it at start."""
    code = "import sys, gdn_apc.fuzz.interpreter; print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_activation_is_idempotent():
    """A second call changes the switches and nothing else."""
    before = tl.load
    interpreter.activate()
    assert interpreter.is_active()
    assert tl.load is before


def test_versions():
    """A version whose interpreter nobody read is refused by name; a local suffix is ignored."""
    check_version("3.7.1+cpu")
    with pytest.raises(interpreter.UnsupportedTriton) as e:
        check_version("3.9.0")
    assert str(e.value) == (
        "triton: version 3.9.0 is installed, and its interpreter is not known to the mends; expected one of "
        "3.6.0, 3.7.1. Install triton==3.7.1, or test on a GPU"
    )


def test_activation_too_late_is_refused():
    """Three ways of being late or unsupported, each with its own message."""
    code = """
import json, os, sys, types
os.environ.pop("TRITON_INTERPRET", None)
import triton, triton.language as tl
from gdn_apc.fuzz import interpreter
def attempt():
    try:
        interpreter.activate()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
out = [attempt()]
os.environ.pop("TRITON_INTERPRET", None)
version, triton.__version__ = triton.__version__, "99.0"
out.append(attempt())
triton.__version__ = version
os.environ.pop("TRITON_INTERPRET", None)
module = sys.modules["gdn_apc.impl.fake"] = types.ModuleType("gdn_apc.impl.fake")
module.kernel = triton.jit(tl.cdiv.fn)
out.append(attempt())
print(json.dumps([*out, interpreter.is_active()]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    late, version, kernels, active = json.loads(ran.stdout)
    assert late.startswith(
        "RuntimeError: triton was imported in compiling mode before interpreter.activate()"
    )
    assert version.startswith("UnsupportedTriton: triton: version 99.0 is installed")
    assert kernels.startswith(
        "RuntimeError: module gdn_apc.impl.fake was imported before interpreter.activate()"
    )
    assert "(kernel)" in kernels
    assert active is False


def test_unknown_switch_value():
    """The text names the argument and its value."""
    with pytest.raises(ValueError, match="undefined: 'ones' is not known; expected 'zero' or 'poison'"):
        interpreter.activate(undefined="ones")


def test_overflow_is_an_error_on_demand():
    """int32 wraps silently by default, as on a GPU; with overflow_check it raises."""
    x = torch.full((4,), 2**30, dtype=torch.int32)
    out = torch.zeros_like(x)
    _add[(1,)](x, x, out, 4)
    assert out.tolist() == [-(2**31)] * 4

    interpreter.activate(overflow_check=True)

    with pytest.raises(AssertionError, match="int32 overflow detected"):
        _add[(1,)](x, x, out, 4)


@pytest.mark.parametrize("precision, loses", [("tf32", True), ("ieee", False), ("tf32x3", False)])
def test_tf32_on_demand(precision, loses):
    """With tf32 on, a product that allows it sees 10 bits of mantissa; others stay exact."""
    a, b = torch.full((16, 16), 1 + 2**-12), torch.eye(16)
    out = torch.zeros(16, 16)
    _product[(1,)](a, b, out, 16, precision)
    assert torch.equal(out, a)

    interpreter.activate(tf32=True)
    _product[(1,)](a, b, out, 16, precision)

    assert torch.equal(out, torch.ones(16, 16)) == loses


@pytest.mark.parametrize("undefined, tail", [("zero", [0.0, 0.0]), ("poison", [float("nan")] * 2)])
def test_undefined_lanes(undefined, tail):
    """A masked-off lane without ``other`` is zero, or on demand NaN, so that relying on it shows."""
    interpreter.activate(undefined=undefined)
    out = torch.zeros(4)
    _unmasked[(1,)](torch.ones(4), out, 2, 4)
    assert torch.equal(out.nan_to_num(nan=-1.0), torch.tensor([1.0, 1.0, *tail]).nan_to_num(nan=-1.0))


def test_errors_carry_the_kernel_and_program():
    """An error in a kernel is that error, with a note that says where."""
    with pytest.raises(AttributeError) as e:
        _add[(1,)](torch.ones(4), None, torch.ones(4), 4)
    assert e.value.__notes__ == ["in kernel '_add', program (0, 0, 0) of grid (1, 1, 1), interpreted"]


def test_missing_arguments_are_named():
    """A launch with too few arguments says which."""
    with pytest.raises(TypeError, match=r"missing \['out', 'N'\]"):
        _add[(1,)](torch.ones(4), torch.ones(4))


def test_settings_default():
    """What a plain activate() means."""
    assert (SETTINGS.bounds, SETTINGS.overflow_check, SETTINGS.tf32, SETTINGS.undefined) == (
        True,
        False,
        False,
        "zero",
    )


def test_a_grid_may_replace_arguments():
    """A callable grid gets the launch's own dictionary, so what it puts there is what the kernel sees."""
    x, out = torch.ones(4), torch.zeros(4)

    def grid(args):
        args["y"] = torch.full((4,), 5.0)
        return (1,)

    _add[grid](x, x, out, 4)
    assert out.tolist() == [6.0] * 4
