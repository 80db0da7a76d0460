"""Each mend of the interpreter: the stock behaviour is wrong, the mended one right.

The stock behaviour comes from a process of its own. Exercise it with ``pytest tests/fuzz/test_interpreter_mends.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdn_apc.fuzz import interpreter

interpreter.activate()

import interpreter_cases  # noqa: E402


@pytest.fixture(scope="module")
def stock():
    """What every case gives in the stock interpreter, from one process."""
    script = Path(__file__).with_name("interpreter_cases.py")
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def value(name: str):
    return interpreter_cases.CASES[name]()


def test_bf16_is_a_number(stock):
    """Products and sums of bf16 are those of torch, bit for bit; stock they are bit patterns added."""
    assert stock["bf16_arithmetic"]["value"] > 1e30
    assert value("bf16_arithmetic") == 0


def test_bf16_dot_accumulates_in_fp32(stock):
    """A product of bf16 tiles is as exact as fp32 accumulation makes it; stock it is off by 1e10."""
    assert stock["bf16_product"]["value"] > 1e9
    assert value("bf16_product") < 5e-6


def test_fp32_to_bf16_rounds_to_nearest_even(stock):
    """Ties included; stock it truncates."""
    assert stock["bf16_rounding"]["value"] > 100
    assert value("bf16_rounding") == 0


def test_bf16_constants(stock):
    """``tl.full(…, tl.bfloat16)`` exists; stock it does not."""
    assert "get_bf16" in stock["bf16_constant"]["error"]
    assert value("bf16_constant") == [1.5] * 4


def test_loop_variables_are_tensors(stock):
    """``i.to(tl.int64)`` works; stock ``i`` is an int."""
    assert "'int' object has no attribute 'to'" in stock["loop_variable_is_a_tensor"]["error"]
    assert value("loop_variable_is_a_tensor") == [0, 2, 4]


def test_loop_variables_overflow_as_on_a_gpu(stock):
    """2 · 2**30 wraps in int32; stock it silently becomes 64 bits wide."""
    assert stock["loop_variable_is_32_bits"]["value"] == [0, 2**30, 2**31, 3 * 2**30]
    assert value("loop_variable_is_32_bits") == [0, 2**30, -(2**31), -(2**30)]


def test_captured_builtins(stock):
    """``exp = tl.exp`` at module level is interpreted too."""
    assert "_semantic" in stock["captured_builtin"]["error"]
    assert value("captured_builtin") == 8


def test_callable_grids_see_torch_tensors(stock):
    """A grid function may look at the arguments as passed."""
    assert stock["callable_grid"]["value"] == "tensor"
    assert value("callable_grid") == "Tensor"


def test_autotuned_kernels_take_the_first_configuration(stock):
    """No driver is asked for timings."""
    assert "0 active drivers" in stock["autotuned"]["error"]
    assert value("autotuned") == 8


@pytest.mark.parametrize("name, what, argument", [("read", "a load", "x"), ("write", "a store", "out")])
def test_out_of_bounds_is_an_error(stock, name, what, argument):
    """The error names the kernel, the program, the lanes and the nearest argument; stock there is none."""
    assert stock[f"{name}_out_of_bounds"]["value"] == [7.0 if name == "read" else 1.0] * 8
    with pytest.raises(interpreter.OutOfBounds) as e:
        value(f"{name}_out_of_bounds")
    text = str(e.value)
    assert f"kernel '_copy', program (0, 0, 0): {what} of 4 of 8 active lanes lies in no tensor" in text
    assert f"nearest is argument {argument!r}: 0 bytes after the end of its 16. Mask these lanes off" in text


def test_float_arguments_are_fp32(stock):
    """0.1 · 0.1 is the product of two fp32; stock it is computed in double and rounded once."""
    assert stock["float_argument"]["value"] == pytest.approx(0.01, abs=3e-10)
    assert value("float_argument") == pytest.approx(0.010000000707805157, abs=1e-16)


def test_products_too_narrow_for_a_gpu_are_refused(stock):
    """An inner dimension of 8 does not compile, so it does not run here."""
    assert stock["narrow_product"]["value"] == 8
    with pytest.raises(AssertionError, match="K >= 16"):
        value("narrow_product")


def test_maximum_of_nan_is_the_number(stock):
    """As the GPU's default has it; stock it is NaN."""
    assert all(x != x for x in stock["maximum_of_nan"]["value"])
    assert value("maximum_of_nan") == [2, 1]


def test_scans_combine_slices(stock):
    """16 positions of 8 columns take 15 calls; stock, one for each element."""
    assert stock["scan"]["value"]["calls"] == 120
    ours = value("scan")
    assert ours["calls"] == 15
    assert ours["error"] < 1e-6


def test_prefix_sums_are_added_up_in_parallel(stock):
    """As lanes of a GPU do: a sum need not repeat bit for bit where zeros follow; stock it does."""
    assert stock["prefix_sums"]["value"]["differ"] == 0
    ours = value("prefix_sums")
    assert ours["differ"] > 5
    assert ours["error"] < 4


def test_reductions_over_negative_axes(stock):
    """Axis -1 is the last one; stock a combining function of one's own fails on it."""
    assert "error" in stock["reduce_over_the_last_axis"]
    assert value("reduce_over_the_last_axis") < 1e-6


def test_no_floating_point_warnings(stock):
    """exp(1000) is inf, silently, as on hardware."""
    assert stock["warnings_of_overflow"]["value"] == ["overflow encountered in exp"]
    assert value("warnings_of_overflow") == []


def test_the_language_is_patched_once(stock):
    """A launch replaces no attribute; stock, hundreds."""
    assert stock["patches_per_launch"]["value"] > 100
    assert value("patches_per_launch") == 0


def test_every_case_has_a_mend():
    """A case that no test here reads is a mistake."""
    text = Path(__file__).read_text()
    assert [
        n for n in interpreter_cases.CASES if f'"{n}"' not in text and not n.endswith("out_of_bounds")
    ] == []
