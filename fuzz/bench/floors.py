"""How fast could it be: the fewest bytes over the memory's rate, or the operations over the matrix units' rate.

Each input is read once, each output written once, and nothing in between touches memory. Products that the chunk
form needs, for one token of one value head with chunks of C tokens (``oracle/wy.py``)::

    S q, W S, the update of S         3 products of K · V             6 K V operations
    k kᵀ, q kᵀ, T k: K wide; T v, P v': V wide, lower triangles       C (3 K + 2 V)

At 16/32 heads of 128 × 128 and 8,192 tokens that is 0.2 GB and 36 GFLOP: 0.05 ms either way. The chain of dependent
chunks is not in it. Imports the standard library and ``problems``. Exercise it with ``pytest tests/benchmarks/test_problems.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.bench.problems import BYTES, CHUNK, Problem

BANDWIDTH = 4.3e12
"""Bytes a second: a large copy on an H200, read plus written."""
MATRIX_RATE = 700e12
"""bf16 operations a second of a large product on an H200, with something to spare."""

INT32 = FP32 = 4


def traffic(p: Problem) -> int:
    """Bytes that must move."""
    x, s, T, N = BYTES[p.dtype], BYTES[p.state], p.tokens, len(p.lengths)
    state = p.HV * p.K * p.V * s
    states = (p.states_written + (N if p.computed else 0)) * state
    window = (p.W - 1) * p.D * x
    windows = (p.states_written + (N if p.computed else 0)) * window
    gates_in, gates_out = 2 * T * p.HV * x, 2 * T * p.HV * FP32
    o = T * p.HV * p.V * x
    return {
        "conv": 2 * T * p.D * x + windows,
        "gates": gates_in + gates_out,
        "delta": T * p.D * x + gates_out + o + states,
        "core": T * p.D * x + gates_in + o + states + windows,
        "decode": T * p.D * x + gates_in + o + states + windows,
        "metadata": (2 + 2 + 7) * N * INT32,
    }[p.op]


def operations(p: Problem) -> int:
    """Floating-point operations of the matrix products; elementwise work is not counted."""
    if p.op == "decode":
        return 6 * p.K * p.V * p.HV * p.tokens
    if p.op in ("delta", "core"):
        return (6 * p.K * p.V + CHUNK * (3 * p.K + 2 * p.V)) * p.HV * p.tokens
    return 0


def floor_ms(p: Problem) -> float:
    """The larger of the two times."""
    return 1e3 * max(traffic(p) / BANDWIDTH, operations(p) / MATRIX_RATE)


def export_ms(p: Problem) -> float:
    """Time of the bytes of all states that the batch stores beyond each row's last."""
    extra = p.states_written - sum(1 for m in p.lengths if m)
    return 1e3 * extra * p.HV * p.K * p.V * BYTES[p.state] / BANDWIDTH
