"""The runner finds every kind of wrong answer and names its place; what surrounds the data is what it says.

``pytest tests/fuzz/test_runner.py``
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Row, Sizes, Step
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runner import How, World, check_write_set, compare, make_batch, truth
from gdn_apc.fuzz.targets.base import Batch
from gdn_apc.fuzz.targets.reference import ReferenceTarget

CASE = Case(
    property="values",
    level="core",
    sizes=Sizes(H=1, HV=2, K=8, V=16, W=4, B=4, C=16),
    dtypes=Dtypes("bf16", "fp32", "bf16"),
    inputs=Inputs(3, gates="near_one"),
    requests=(Request(11), Request(7, 0, 4)),
    steps=(
        Step((Row(0, 0, 9, (3, 1, 2)),)),
        Step((Row(None, 7, 0, (3, 1)), Row(0, 9, 2, (3, 1, 2)), Row(1, 4, 3, (3, 5)), Row(0, 11, 0, (3,)))),
    ),
    pool=Pool(7, page_padding=64),
    options=Options(conv_bias=True),
)


class Spoiled(ReferenceTarget):
    """The reference; ``spoil(self, out, states)`` changes what it left."""

    def __init__(self, spoil):
        self.spoil, self.batches = spoil, []

    def core(self, layer, x, a, b, conv_state, ssm_state, batch):
        self.batches.append((batch, x, a, b))
        out = super().core(layer, x, a, b, conv_state, ssm_state, batch)
        self.spoil(len(self.batches) - 1, out, conv_state, ssm_state)
        return out


def check_all(target, case=CASE):
    world, checked = World(target, case), Checked()
    for i in range(len(case.steps)):
        ran = world.run(i)
        compare(world, ran, checked)
        check_write_set(world, ran)
    return checked


def test_the_reference_is_right():
    """All rows and blocks are compared: 9 outputs and blocks of two parts each, 3 outputs."""
    checked = check_all(ReferenceTarget())

    assert checked.comparisons == 3 + 2 * (3 + 1 + 1)
    assert {"state fp32", "core output bf16"} == set(checked.ratios)
    assert max(max(r) for r in checked.ratios.values()) <= 1


def nudge(step, tensor, place, by):
    """Add ``by`` to one element after one step."""

    def spoil(i, out, conv_state, ssm_state):
        if i == step:
            {"out": out, "conv": conv_state, "ssm": ssm_state}[tensor][place] += by

    return spoil


@pytest.mark.parametrize(
    "spoil, where",
    [
        (
            nudge(0, "out", (6, 1, 2), 0.5),
            dict(step=0, row=0, request=0, position=6, block=1, head=1, value=2),
        ),
        (
            nudge(1, "out", (2, 0, 5), 0.5),
            dict(step=1, row=2, request=1, position=4, block=1, head=0, value=5),
        ),
        (
            nudge(0, "ssm", (1, 1, 3, 7), 0.1),
            dict(step=0, request=0, column=1, slot=1, head=1, value=3, key=7),
        ),
        (nudge(1, "ssm", (5, 0, 0, 0), 0.1), dict(step=1, row=2, request=1, column=1, slot=5)),
        (nudge(0, "conv", (3, 2, 9), 0.1), dict(step=0, request=0, column=0, slot=3, tap=2, channel=9)),
        (None, dict(step=1, slot=4, part="ssm", offset=0)),
        (None, dict(step=0, slot=0, part="conv", offset=2)),
    ],
)
def test_the_first_wrong_place_is_named(spoil, where):
    """Step, row, request, position, block, head for outputs; column and slot for blocks; slot and byte for strays."""

    with pytest.raises(Violation) as caught:
        check_all(Spoiled(spoil or stray(where)))

    assert {key: caught.value.where.get(key) for key in where} == where, caught.value
    assert str(where.get("slot", "")) in str(caught.value)


def stray(where):
    """Write a number where nobody may write."""

    def spoil(i, out, conv_state, ssm_state):
        if i == where["step"]:
            state = conv_state if where["part"] == "conv" else ssm_state
            index = [0] * (state.dim() - 1)
            index[-1] = where["offset"] // state.element_size()
            state[(where["slot"], *index)] = 1.0

    return spoil


def test_rows_are_compared_locally():
    """A wrong block is the fault of the row that wrote it: the rows that read it are right given what they read."""
    spoil = nudge(0, "ssm", (3, 0, 0, 0), 3.0)
    world = World(Spoiled(spoil), CASE)
    world.run(0)

    compare(world, world.run(1), Checked())  # reads slot 3 as it is


def test_what_the_target_sees():
    """Batches, tails, widened tables, poison and spoiled rows are what ``How`` says."""
    target = Spoiled(lambda *args: None)
    World(target, CASE, How(tail=3, widen=2, spoil=1)).run_all()
    batch, x, a, _ = target.batches[1]

    assert batch.seq_lens.tolist() == [7, 11, 7, 11]
    assert batch.query_start_loc.tolist() == [0, 0, 2, 5, 5]
    assert batch.block_table.tolist() == [[3, 1, 0, 0, 0], [3, 1, 2, 0, 0], [3, 5, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert (batch.max_query_len, batch.block_size, batch.chunk_size) == (3, 4, 16)
    assert x.shape == (8, 48) and x[5:].isnan().all() and a[5:].isnan().all()
    assert x[2:5].isnan().all() and not x[:2].isnan().any()


def test_hiding_leaves_only_what_is_read():
    """While a step runs, every slot that no row of it reads is poison; afterwards only its writes are new."""
    seen = {}

    def look(i, out, conv_state, ssm_state):
        seen[i] = [bool(s.isnan().all()) for s in ssm_state], [bool(s.isnan().all()) for s in conv_state]

    world = World(Spoiled(look), CASE, How(hide=True))
    world.run(0)
    before = world.pages.ssm[[1, 3]].clone()
    world.run(1)

    assert (
        seen[1] == ([True, True, False, False, True, False, True],) * 2
    )  # 2 and 3 are read, 2 and 5 written
    assert torch.equal(world.pages.ssm[[1, 3]], before)


def test_hidden_strays_are_violations_too():
    """A write to a hidden slot cannot be lost when the slot is put back."""
    target = Spoiled(stray(dict(step=1, part="ssm", slot=1, offset=0)))

    with pytest.raises(Violation, match="step 1 changed slot 1, ssm, byte 0; it may write the slots"):
        World(target, CASE, How(hide=True)).run_all()


def test_edits_come_before_their_step():
    """A property may change a slot between steps, and the oracle starts from what it then holds."""

    def edit(i, world):
        if i == 1:
            world.pages.ssm[3] = 2.0

    world = World(ReferenceTarget(), CASE, edit=edit)
    world.run(0)
    ran = world.run(1)

    assert (ran.rows[1].state == 2.0).all()
    compare(world, ran, Checked())
    assert truth(world, ran.rows[1]).o.shape == (3, 2, 16)


def test_invalid_cases_are_refused():
    """A case outside the contract is never run."""
    broken = dataclasses.replace(CASE, steps=CASE.steps[1:])

    with pytest.raises(ValueError, match="outside the contract, so it cannot judge a target"):
        World(ReferenceTarget(), broken)


def test_digest_covers_every_bit():
    """Two runs agree; one changed bit of an output or a block does not."""

    def digest(spoil=lambda *args: None):
        world = World(Spoiled(spoil), CASE)
        world.run_all()
        return world.digest()

    assert digest() == digest()
    assert (
        len({digest(), digest(nudge(0, "out", (0, 0, 0), 1.0)), digest(nudge(1, "conv", (5, 0, 0), 1.0))})
        == 3
    )


def test_batch_of_no_rows_and_no_columns():
    """Edge shapes of the batch an engine could hand over."""
    empty = make_batch((), 4, 16, torch.device("cpu"))
    padding = make_batch((Row(None, 0, 0, ()),), 4, 16, torch.device("cpu"))

    assert isinstance(empty, Batch) and empty.block_table.shape == (0, 1) and empty.max_query_len == 0
    assert padding.block_table.tolist() == [[0]] and padding.query_start_loc.tolist() == [0, 0]
