"""What the green of a campaign does not prove, from its events: what it did not reach or was not asked.

Imports ``fuzz.summary``. Exercise it with ``pytest tests/fuzz/test_runs.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.summary import Totals


def limits(totals: Totals) -> list[str]:
    """What this run did not reach, so that its green says nothing about it."""
    start = totals.start
    gpu = str(start.get("device", "cpu")).startswith("cuda")
    found = (
        []
        if gpu
        else [
            "Races between or inside programs: the interpreter runs one program at a time, in order.",
            "Tensor-core rounding, tf32 and the compiler: products ran on a CPU.",
            "CUDA graphs: no captured graph was replayed.",
            "Speed, occupancy, and behaviour at the memory sizes of a GPU.",
        ]
    )
    if gpu:
        found.append(f"Any GPU but {start['device']}, and any capture of a CUDA graph that no property made.")
    found += [
        "Tensor parallelism, pipeline parallelism and several streams.",
        "Speculative decoding: no rejected token was rolled back.",
        "The serving engine around the layer: its scheduler, its hashes, its transfers of blocks.",
    ]
    if totals.largest[1]:
        block, tokens, steps = totals.largest
        found.append(
            f"Sizes beyond the largest drawn: block size {block}, {tokens} tokens, {steps} steps a case."
        )
    found += [f"{p['name']} ({p['needs']})." for p in start.get("properties", []) if p["needs"]]
    found += [f"Ledger event {e['name']} ({e['needs']})." for e in start.get("ledger", []) if e["needs"]]
    if start.get("pairs_left_out"):
        found.append(f"Pairs of dtypes that the target does not claim: {', '.join(start['pairs_left_out'])}.")
    return found
