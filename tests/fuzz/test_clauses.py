"""Clauses that a target does not claim: it is held to what it does instead, and to nothing looser.

``pytest tests/fuzz/test_clauses.py``
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from asking import ask
from hypothesis import given, settings

from gdn_apc import oracle
from gdn_apc.fuzz.geometry import write_slots
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.reference import ReferenceTarget


def claiming(base: type[ReferenceTarget], **claims) -> ReferenceTarget:
    """An instance of ``base`` that claims something else."""
    target = base()
    target.claims = replace(target.claims, **claims)
    return target


class RoundsProducts(ReferenceTarget):
    """Rounds the products of its convolution to the input dtype, as vLLM does; in halves."""

    claims = Claims(seams=frozenset({"conv"}), input_dtypes=frozenset({"bf16", "fp16"}))

    def conv(self, layer, x, conv_state, batch):
        y = super().conv(layer, x, conv_state, batch)
        dtype = {torch.bfloat16: "bf16", torch.float16: "fp16"}[x.dtype]
        if conv_state.dtype != x.dtype:
            return y
        before = self.windows  # what rows read, kept by `_with_windows`
        for line in self.lines(batch):
            part = x[line.at : line.at + line.m]
            window = before.get(line.index)
            out = oracle.causal_conv1d(
                part, layer.conv_weight, layer.conv_bias, window, layer.activation, products=dtype
            )
            y[line.at : line.at + line.m] = out.to(x.dtype)
        return y


def _with_windows(target: RoundsProducts) -> RoundsProducts:
    """Keeps what rows read before the convolution overwrites it."""
    plain = target.conv

    def conv(layer, x, conv_state, batch):
        slots = {line.index: target.read_slot(line, batch) for line in target.lines(batch)}
        target.windows = {i: None if s is None else conv_state[s].clone() for i, s in slots.items()}
        return plain(layer, x, conv_state, batch)

    target.conv = conv
    return target


def test_products_in_half_precision():
    """Rounded products fail a target that claims fp32 ones, and hold for one that does not; fp32 ones then fail."""
    with pytest.raises(Violation, match="the output is wrong"):
        ask(_with_windows(RoundsProducts()), "values", 20)
    assert ask(_with_windows(claiming(RoundsProducts, conv_fp32=False)), "values", 20) >= 15
    plain = claiming(
        ReferenceTarget, seams=frozenset({"conv"}), input_dtypes=frozenset({"bf16"}), conv_fp32=False
    )
    with pytest.raises(Violation, match="the output is wrong"):
        ask(plain, "values", 20)


class RoundsFreshTokens(ReferenceTarget):
    """Rounds the normalised key of a first step of one token to bf16, as a chunk kernel does."""

    claims = Claims(
        seams=frozenset({"delta"}), input_dtypes=frozenset({"bf16"}), state_dtypes=frozenset({"fp32"})
    )

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        k = k.clone()
        for line in self.lines(batch):
            key = k[line.at].double()
            if line.n == 0 and line.m == 1 and layer.use_qk_l2norm and key.norm(dim=-1).min() > 0.5:
                k[line.at] = torch.nn.functional.normalize(key, dim=-1).to(k.dtype)
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch)


def test_a_first_token_in_half_precision():
    """Allowed where fp32 is not claimed for it, and nowhere else."""
    with pytest.raises(Violation, match=r"state\(1\) is wrong"):
        ask(RoundsFreshTokens(), "values", 150)
    assert ask(claiming(RoundsFreshTokens, fresh_token_fp32=False), "values", 150) >= 100


@pytest.mark.parametrize("claimed", [True, False])
def test_null_columns_are_drawn_for_targets_that_skip_them(claimed):
    """A target that does not claim to skip them is never asked to write one."""
    target, found = claiming(ReferenceTarget, skips_null=claimed), []

    @settings(max_examples=150, database=None, deadline=None)
    @given(load_all()["write_set"].strategy(target))
    def draw(case):
        rows = [row for step in case.steps for row in step.rows if row.request is not None and row.m]
        columns = [
            j for row in rows for j in range(row.n // case.sizes.B, -(-(row.n + row.m) // case.sizes.B))
        ]
        written = sum(len(list(write_slots(row, case.sizes.B))) for row in rows)
        found.append(len(columns) > written)

    draw()
    assert any(found) is claimed


def test_half_precision_operands_lose_small_values():
    """The tolerance of fp16 operands is wider than tf32's below fp16's normal numbers only."""
    torch.manual_seed(0)
    shapes = dict(n=0, block_size=64, chunk_size=64, state=None, dtypes=("fp16", "fp32"), use_qk_l2norm=True)

    def tolerance(size, **more):
        torch.manual_seed(1)
        q, k, v = torch.randn(8, 1, 16), torch.randn(8, 1, 16), torch.randn(8, 1, 16) * size
        g, beta = -torch.rand(8, 1), torch.rand(8, 1)
        return oracle.delta_step(q.half(), k.half(), v, g, beta, **shapes, **more).state_tol[0].mean()

    assert tolerance(1.0, operand="fp16") < 1.5 * tolerance(1.0)
    assert tolerance(1e-7, operand="fp16") > 5 * tolerance(1e-7)
