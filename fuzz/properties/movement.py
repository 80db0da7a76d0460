"""``index_movement``: with integers and powers of two nothing is ever rounded, so data movement is compared exactly.

Delta rule: no decay, beta 0 or 1, one-hot keys, integer values. Then a state is a table whose columns are replaced
by values, and the chunked form computes with small integers throughout. Convolution: integer inputs, weights
that are powers of two, no activation. A wrong head, slot, column, position or transpose has no rounding to hide in.

Imports ``fuzz`` and ``oracle``. Exercise it with ``pytest tests/fuzz/test_properties.py -k movement``.
"""

from __future__ import annotations

import math

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties._shared import any_of, needs, passed
from gdn_apc.fuzz.properties.base import Checked, Property, Violation, register
from gdn_apc.fuzz.runner import RanRow, World, truth
from gdn_apc.fuzz.strategies import cases
from gdn_apc.fuzz.targets.base import Target

REGIMES = ("zero", "binary", "onehot", "ints")
"""Of gates, betas, keys and values."""


def check_exact(case: Case) -> None:
    """Raises ``ValueError`` for a case whose results are rounded: an edited or a shrunk one may have become that."""
    inputs, options = case.inputs, case.options
    scale = case.sizes.K**-0.5 if options.scale is None else options.scale
    if (
        (inputs.gates, inputs.betas, inputs.keys, inputs.values) != REGIMES
        or options.use_qk_l2norm
        or options.activation is not None
        or (case.level == "delta" and math.frexp(scale)[0] != 0.5)
    ):
        raise ValueError(
            f"case: results are rounded with {inputs}, {options}; index_movement needs the regimes {', '.join(REGIMES)}, "
            "a scale that is a power of two, and neither norm nor activation"
        )


def check_movement(target: Target, case: Case) -> Checked:
    """Outputs, states and windows equal the oracle's, element for element."""
    check_exact(case)
    checked = Checked()
    world = World(target, case)
    for i in range(len(case.steps)):
        for r in world.run(i).rows:
            _exact_row(world, r, truth(world, r), checked)
    return passed(world, checked)


def _exact_row(world: World, r: RanRow, want: oracle.StepResult, checked: Checked) -> None:
    dtypes, found = world.case.dtypes, []
    for column, parts in r.writes.items():
        place = r.place(column=column, slot=r.row.table[column])
        if "ssm" in parts:
            state = oracle.round_to(want.writes[column].state, dtypes.state)
            axes = ("head", "value", "key")
            found.append((parts["ssm"], state, f"the state of column {column}", axes, place))
        if "conv" in parts:
            window = want.writes[column].window
            found.append((parts["conv"], window, f"the window of column {column}", ("tap", "channel"), place))
    axes = ("token", "channel") if world.case.level == "conv" else ("token", "head", "value")
    found.append((r.out, oracle.round_to(want.o, dtypes.input), "the output", axes, r.place()))
    if not any_of((actual.double() != exact.double()).any() for actual, exact, *_ in found):
        checked.comparisons += len(found)
        return
    for one in found:
        _exact(*one, checked)


def _exact(
    actual: torch.Tensor, want: torch.Tensor, what: str, axes: tuple[str, ...], place: dict, checked: Checked
) -> None:
    checked.comparisons += 1
    wrong = (actual.double() != want.double()).nonzero()
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        where = {**place, **dict(zip(axes, at))}
        raise Violation(
            f"{what} must be exact, expected {float(want[at]):g}, actual {float(actual[at]):g} at "
            f"{', '.join(f'{k} {v}' for k, v in where.items())}; {len(wrong)} of {want.numel()} elements are wrong",
            **where,
        )


register(
    Property(
        name="index_movement",
        doc="On integers and powers of two, where no rounding happens, outputs, states and windows are exact.",
        kind="kernel",
        strategy=lambda target: cases(
            target, "index_movement", levels=("delta", "conv", "delta"), exact=True
        ),
        check=check_movement,
        needs=needs(levels=("conv", "delta")),
    )
)
