"""``gdn-apc spec``, with what ``gdn_apc.spec`` may not import: our metadata builder, and an engine to trace.

Imports argparse's objects only, until the command runs. Exercise it with ``gdn-apc spec --only traces``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdn_apc.spec import cli


def add_to(commands: Any) -> None:
    """Register the command with argparse's ``commands``."""
    cli.add_parser(commands, builders={"impl": impl_metadata}, life=_life)


def impl_metadata(rows: list[tuple[int, int, Sequence[int]]], B: int, C: int) -> dict[str, list[Any]]:
    """``impl.build_metadata`` as plain lists. Padding rows carry a stale length, short tables stale columns."""
    import torch

    from gdn_apc.impl import build_metadata

    starts = [0]
    for _, m, _ in rows:
        starts.append(starts[-1] + m)
    columns = max(len(table) for _, _, table in rows)
    int32 = {"dtype": torch.int32}
    meta = build_metadata(
        torch.tensor([n + m if m else STALE_LENGTH for n, m, _ in rows], **int32),
        torch.tensor(starts, **int32),
        torch.tensor([[*table, *[STALE_SLOT] * (columns - len(table))] for _, _, table in rows], **int32),
        block_size=B,
        chunk_size=C,
        max_query_len=max(2, *(m for _, m, _ in rows)),
        num_tokens=starts[-1],
    )
    return {name: value.tolist() for name, value in vars(meta).items() if isinstance(value, torch.Tensor)}


STALE_LENGTH, STALE_SLOT = 7, 99
"""What must never be looked at."""


def _life(seed: int) -> list[dict[str, Any]]:
    from gdn_apc.fuzz.engine.trace import random_trace

    return random_trace(seed)
