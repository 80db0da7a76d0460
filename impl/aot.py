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

from gdn_apc.impl.configs import Launch, config, next_power_of_two

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
    launch: Launch


def variants(
    arch: str, dtype: str, state: str, H: int, HV: int, K: int, V: int, W: int = 4
) -> Iterator[Variant]:
    """The kernels of one shape class, as ``impl/triton_path.py`` launches them."""
    from gdn_apc.impl import triton_path
    from gdn_apc.impl.kernels import chunked, conv, gates, recurrent

    C, torch_dtype = 64, DTYPES[dtype]
    launches = config(HV, V, torch_dtype, arch)
    _, products, _, blocks = triton_path.OPERANDS[torch_dtype]
    scratch = {torch.bfloat16: "bf16", torch.float32: "fp32"}[products]
    inputs = dict.fromkeys(("x", "weight", "bias", "y", "q", "k", "v", "o", "a", "b", "g", "beta"), dtype)
    pointers = inputs | {
        "state": state,
        "conv_state": dtype,
        **dict.fromkeys(("queries", "keys", "T", "P"), scratch),
    }

    chunk = triton_path.chunk_constants(K, C, C, torch_dtype)
    prepare = dict(L2NORM=True, BLOCKS=blocks, **chunk)
    recurrent_tile = dict(BV=launches.recurrent.tile)
    convolution = [
        triton_path.conv_constants(launch.tile, W, C, one_token, False, True)
        for one_token, launch in ((False, launches.conv), (True, launches.conv_one_token))
    ]
    for name, kernel, launch, constants in (
        ("conv", conv.causal_conv1d_kernel, launches.conv, convolution[0]),
        ("conv, one token", conv.causal_conv1d_kernel, launches.conv_one_token, convolution[1]),
        ("prepare", chunked.prepare_kernel, launches.prepare, prepare),
        (
            "scan",
            chunked.scan_kernel,
            launches.scan,
            dict(V=V, BV=launches.scan.tile, STAGES=launches.scan.num_stages, **chunk),
        ),
        *(
            (
                name,
                recurrent.recurrent_kernel,
                launches.recurrent,
                recurrent_tile | triton_path.recurrent_constants(K, V, True, raw),
            )
            for name, raw in (("recurrent", True), ("recurrent, gates given", False))
        ),
        ("gates", gates.gates_kernel, launches.gates, dict(BT=launches.gates.tile, BH=next_power_of_two(HV))),
    ):
        yield Variant(name, kernel, pointers, constants, launch)


def metadata_variants() -> Iterator[Variant]:
    """The metadata kernels, which know no heads and no dtype, with all that they can write."""
    from gdn_apc.impl import metadata_launch
    from gdn_apc.impl.kernels import metadata

    launch = Launch(metadata_launch.ROWS, **metadata_launch.OPTIONS)
    pointers = dict.fromkeys(metadata.POINTERS, "i32") | {"has_initial_state": "i1"}
    everything = metadata_launch.constants(columns=True, fixed=True, chunks=True)
    yield Variant("metadata", metadata.metadata_kernel, pointers, everything, launch)
    yield Variant("slots", metadata.slots_kernel, pointers, dict(BR=metadata_launch.ROWS), launch)


FP32_POINTERS = ("g", "beta", "A_log", "dt_bias", "factors")
INT32_POINTERS = (
    "query_start_loc", "num_computed_tokens", "read_slots", "write_slots", "block_table", "chunk_offsets", "chunk_row",
)  # fmt: skip


def signature(variant: Variant) -> dict[str, str]:
    """Triton's signature: a type for each argument, in order."""
    types = {}
    for name in variant.kernel.arg_names:
        if name in variant.constants:
            types[name] = "constexpr"
        elif name in FP32_POINTERS and not (name in ("g", "beta") and variant.constants.get("RAW")):
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
        if kind.startswith("*")
        or name == "dim"
        or (name.startswith("stride") and name not in ("stride_table", "stride_g", "stride_beta"))
    }
    began = time.perf_counter()
    source = ASTSource(variant.kernel, types, variant.constants, aligned)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32),
        options=variant.launch.options,
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
    wanted = list(variants(args.arch, args.dtype, args.state, args.H, args.HV, args.K, args.V))
    for variant in wanted + list(metadata_variants()) if args.dtype == "bf16" else wanted:
        built = build(variant, args.arch)
        print(
            f"{args.arch}  {args.dtype}  {variant.name:16} {built['shared']:7d} bytes shared  {built['seconds']:5.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
