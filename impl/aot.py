"""Compiles every kernel ahead of time for a GPU that need not be here.

    python -m gdn_apc.impl.aot --arch sm_90 [--dtype bf16] [--K 128 --V 128]

prints a row a kernel: the architecture, shared memory, and the seconds it took. Triton's interpreter accepts what a
compiler may refuse, so CI runs this for sm_80, sm_90 and sm_100. Imports torch and triton; it must run in a process
without TRITON_INTERPRET. Exercise it with ``pytest tests/impl/test_aot.py``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARED_LIMIT = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448}
"""Shared memory that one block may use, bytes (CUDA programming guide, compute capabilities)."""


@dataclass(frozen=True)
class Variant:
    """One kernel with everything that Triton specialises on."""

    name: str
    kernel: Any  # a triton.JITFunction
    pointers: dict[str, str]  # argument → Triton dtype of what it points to
    constants: dict[str, Any]
    num_warps: int
    num_stages: int


def variants(
    arch: str, dtype: str, state: str, H: int, HV: int, K: int, V: int, W: int = 4
) -> Iterator[Variant]:
    """The kernels of one shape class, as ``impl/triton_path.py`` launches them."""
    from gdn_apc.impl.configs import config, next_power_of_two
    from gdn_apc.impl.kernels import chunked, conv, gates, recurrent
    from gdn_apc.impl.triton_path import OPERANDS

    C = 64
    launches = config(K, V, C, DTYPES[dtype], arch)
    operand, scratch, precision = OPERANDS[DTYPES[dtype]]
    scratch = {torch.bfloat16: "bf16", torch.float32: "fp32"}[scratch]
    BK = next_power_of_two(max(K, 16))
    heads = dict(K=K, V=V, BK=BK, L2NORM=True)
    products = dict(BT=C, OPERAND=operand, PRECISION=precision, **heads)
    inputs = dict.fromkeys(("x", "weight", "bias", "y", "q", "k", "v", "o", "a", "b"), dtype)
    pointers = inputs | {"state": state, "conv_state": dtype, "w": scratch, "u": scratch}

    for one_token in (False, True):
        constants = dict(
            W=W,
            WP=next_power_of_two(W - 1),
            BT=next_power_of_two(W - 1) if one_token else C,
            BD=launches.conv.tile,
            HAS_BIAS=False,
            SILU=True,
            ONE_TOKEN_ROWS=one_token,
        )
        yield _variant(
            "conv, one token" if one_token else "conv",
            conv.causal_conv1d_kernel,
            pointers,
            constants,
            launches.conv,
        )
    yield _variant(
        "prepare",
        chunked.prepare_kernel,
        pointers,
        dict(BV=launches.prepare.tile, **products),
        launches.prepare,
    )
    yield _variant(
        "scan", chunked.scan_kernel, pointers, dict(BV=launches.scan.tile, **products), launches.scan
    )
    yield _variant(
        "recurrent",
        recurrent.recurrent_kernel,
        pointers,
        dict(BV=launches.recurrent.tile, **heads),
        launches.recurrent,
    )
    yield _variant("gates", gates.gates_kernel, pointers, dict(BT=16, BH=next_power_of_two(HV)), None)


def _variant(name, kernel, pointers, constants, launch) -> Variant:
    warps, stages = (launch.num_warps, launch.num_stages) if launch else (2, 1)
    return Variant(name, kernel, pointers, constants, warps, stages)


FP32_POINTERS = ("g", "beta", "A_log", "dt_bias")
INT32_POINTERS = (
    "query_start_loc", "num_computed_tokens", "read_slots", "write_slots", "block_table", "chunk_offsets", "chunk_row",
)  # fmt: skip


def signature(variant: Variant) -> dict[str, str]:
    """Triton's signature: a type for each argument, in order."""
    types = {}
    for name in variant.kernel.arg_names:
        if name in variant.constants:
            types[name] = "constexpr"
        elif name in FP32_POINTERS:
            types[name] = "*fp32"
        elif name in INT32_POINTERS:
            types[name] = "*i32"
        elif name in variant.pointers:
            types[name] = f"*{variant.pointers[name]}"
        else:
            types[name] = "fp32" if name == "scale" else "i32"
    return types


def build(variant: Variant, arch: str) -> dict[str, Any]:
    """Compile one kernel; returns its shared memory in bytes, and the seconds. Raises Triton's
    CompilationError, or RuntimeError for a kernel that could not be launched."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = signature(variant)
    # Strides of a real layer are multiples of 16, and so are addresses; unsaid, loads are scalar.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(types.items())
        if kind.startswith("*") or name == "dim" or (name.startswith("stride") and name != "stride_table")
    }
    began = time.perf_counter()
    source = ASTSource(variant.kernel, types, variant.constants, aligned)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    if not compiled.asm.get("cubin"):
        raise RuntimeError(f"{variant.name}: no machine code for {arch}; see the compiler's output above")
    if compiled.metadata.shared > SHARED_LIMIT[arch]:
        raise RuntimeError(
            f"{variant.name}: {compiled.metadata.shared} bytes of shared memory, {arch} has {SHARED_LIMIT[arch]} a block; "
            "choose narrower tiles in impl/configs.py"
        )
    return {"shared": compiled.metadata.shared, "seconds": time.perf_counter() - began}


def main(argv: list[str] | None = None) -> int:
    """The command line; exit status 0 if every kernel compiles."""
    parser = argparse.ArgumentParser(prog="python -m gdn_apc.impl.aot", description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default="sm_90", choices=SHARED_LIMIT)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--state", default="fp32", choices=DTYPES)
    for size, default in (("H", 16), ("HV", 32), ("K", 128), ("V", 128)):
        parser.add_argument(f"--{size}", type=int, default=default)
    args = parser.parse_args(argv)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set: the interpreter compiles nothing; unset it")
    for variant in variants(args.arch, args.dtype, args.state, args.H, args.HV, args.K, args.V):
        built = build(variant, args.arch)
        print(
            f"{args.arch}  {args.dtype}  {variant.name:16} {built['shared']:7d} bytes shared  {built['seconds']:5.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
