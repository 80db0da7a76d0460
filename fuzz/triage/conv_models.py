"""Wrong convolutions that a row may have made, held against its outputs: another window, no bias, products in a narrow dtype.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py -k conv``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.geometry import read_slot
from gdn_apc.fuzz.tensors import TORCH
from gdn_apc.fuzz.triage.moves import Match
from gdn_apc.fuzz.triage.survey import Survey, View


def explanation(found: Survey, view: View) -> tuple[str, Match] | None:
    """The first wrong convolution that gives a row's outputs: (read or compute; what it is). None at other levels."""
    if found.world.case.level != "conv" or view.first_output is None:
        return None
    dtype = found.world.case.dtypes.input
    for seam, match, y in _models(found, view):
        slack = view.want.o_tol * 1.5 + 2.0**-22 * y.abs()
        right = bool((oracle.ratios(view.want.o, y, view.want.o_tol, dtype) <= 1).all())
        if not right and bool((oracle.ratios(y, view.r.out, slack, dtype) <= 1).all()):
            return seam, match
    return None


def _models(found: Survey, view: View) -> Iterator[tuple[str, Match, torch.Tensor]]:
    world, r = found.world, view.r
    layer, x, d = world.layer, r.inputs["x"], world.case.dtypes

    def y(window, bias=layer.conv_bias, activation=layer.activation, weight=layer.conv_weight):
        return oracle.causal_conv1d(x, weight, bias, window, activation)

    if r.window is not None:
        yield "read", Match("forgets", "it starts from a window of zeros"), y(None)
        for shift in (1, -1):
            shifted = r.window.roll(shift, 0).clone()
            shifted[0 if shift > 0 else -1] = 0
            late = "late" if shift > 0 else "early"
            yield "read", Match("position", f"it reads its window one input too {late}"), y(shifted)
        yield "read", Match("position", "it reads its window in the opposite order"), y(r.window.flip(0))
    for slot, window in _windows(found, view):
        yield (
            "read",
            Match("fresh" if r.row.n == 0 else "slot", f"it starts from the window that slot {slot} holds"),
            y(window),
        )
    if layer.conv_bias is not None:
        yield "compute", Match("option", "the bias is left out"), y(r.window, bias=None)
    other = None if layer.activation else "silu"
    yield (
        "compute",
        Match("option", f"the activation is {other}, not {layer.activation}"),
        y(r.window, activation=other),
    )
    if d.input != "fp32":
        yield (
            "compute",
            Match("operand", f"products are rounded to {d.input} before they are summed"),
            _narrow(found, view),
        )


def _narrow(found: Survey, view: View) -> torch.Tensor:
    """The convolution with each product rounded to the input dtype, summed in fp32."""
    layer, r, dtype = found.world.layer, view.r, TORCH[found.world.case.dtypes.input]
    W = layer.conv_weight.shape[1]
    window = r.window if r.window is not None else r.inputs["x"].new_zeros(W - 1, r.inputs["x"].shape[1])
    inputs = torch.cat([window.to(dtype), r.inputs["x"].to(dtype)])
    y = torch.zeros(r.row.m, inputs.shape[1], dtype=torch.float32, device=inputs.device)
    if layer.conv_bias is not None:
        y += layer.conv_bias.float()
    for w in range(W):
        y += (layer.conv_weight[:, w].to(dtype) * inputs[w : w + r.row.m]).float()
    y = y.double()
    return y * torch.sigmoid(y) if layer.activation == "silu" else y


def _windows(found: Survey, view: View) -> Iterator[tuple[int, torch.Tensor]]:
    """Every other slot's finite window before the step."""
    pages, right = found.world.pages, read_slot(view.r.row, found.world.case.sizes.B)
    if pages.num_slots > 64:
        return
    now = pages.snapshot()
    try:
        pages.restore(found.ran[view.r.step].before)
        held = {slot: pages.conv[slot].clone() for slot in range(pages.num_slots) if slot != right}
    finally:
        pages.restore(now)
    for slot, window in held.items():
        if bool(window.double().isfinite().all()) and bool(window.double().any()):
            yield slot, window
