"""Every kernel compiles for sm_80, sm_90 and sm_100, in processes of its own: this one interprets."""

import os
import subprocess
import sys

import pytest

SHAPES = [
    ("sm_80", "bf16", 32),
    ("sm_90", "bf16", 32),
    ("sm_90", "bf16", 8),
    ("sm_100", "bf16", 32),
    ("sm_80", "fp32", 32),
]


@pytest.mark.parametrize(("arch", "dtype", "HV"), SHAPES)
def test_compiles(arch, dtype, HV):
    """Qwen3-Next's head shapes, whole and divided over four ranks; every kernel in all its forms, and the two of the metadata."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "gdn_apc.impl.aot",
        "--arch",
        arch,
        "--dtype",
        dtype,
        "--HV",
        str(HV),
        "--H",
        str(HV // 2),
    ]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    built = [line.split("  ")[2].strip() for line in ran.stdout.splitlines()]
    layer = ["conv", "conv, one token", "prepare", "scan", "recurrent", "recurrent, gates given", "gates"]
    assert built == layer + ["metadata", "slots"] * (dtype == "bf16")


def test_refuses_to_interpret():
    """Under the interpreter nothing would be compiled: an error, not a pass."""
    env = os.environ | {"TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "gdn_apc.impl.aot"], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "TRITON_INTERPRET=1 is set: the interpreter compiles nothing; unset it" in ran.stderr
