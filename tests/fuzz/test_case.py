"""A case survives its JSON, and a file that is not a case says so. ``pytest tests/fuzz/test_case.py``."""

import dataclasses
import json

import pytest

from gdn_apc.fuzz.case import SCHEMA, Case, Dtypes, Inputs, Options, Pool, Request, Row, Sizes, Step

CASE = Case(
    property="values",
    level="core",
    sizes=Sizes(H=2, HV=4, K=16, V=8, W=4, B=5, C=16),
    dtypes=Dtypes("bf16", "fp32", "bf16"),
    inputs=Inputs(seed=7, gates="mixed"),
    requests=(Request(12), Request(9, parent=0, shared=5)),
    steps=(
        Step((Row(0, 0, 12, (1, 2, 3)), Row(None, 99, 0, (3, 3)))),
        Step((Row(1, 5, 4, (1, 4)), Row(0, 12, 0, (1, 2, 3)))),
    ),
    pool=Pool(num_slots=6, page_padding=12, channel_major=True),
    options=Options(scale=0.25),
    choice={"cut": 3, "orders": [2, 0, 1]},
)


def test_json_round_trip_is_exact():
    """Every field comes back equal, tuples as tuples."""
    assert Case.from_json(CASE.to_json()) == CASE


def test_provenance_is_not_part_of_the_case():
    """A replay must not depend on who found the case."""
    assert Case.from_json(CASE.to_json(target="native", seed=3)) == CASE


def test_another_schema_is_refused():
    """A newer file must not be replayed as if it meant the same."""
    text = CASE.to_json().replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}')

    with pytest.raises(ValueError, match=f"reads case schema {SCHEMA}, the file has {SCHEMA + 1}"):
        Case.from_json(text)


def test_an_unknown_field_is_refused():
    """A field that is dropped silently would change what is replayed."""
    record = json.loads(CASE.to_json()) | {"surprise": 1}

    with pytest.raises(ValueError, match="not a case of schema"):
        Case.from_json(json.dumps(record))


def test_derived_sizes():
    """Channels of the convolution, and the tokens that all steps compute."""
    assert CASE.sizes.conv_dim == 2 * 2 * 16 + 4 * 8
    assert CASE.num_tokens == 16


def test_cases_are_immutable():
    """A check cannot change the case that its report will print."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        CASE.level = "conv"
