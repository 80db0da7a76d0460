"""Metadata cases made by the model: the code and the oracle agree with every one, exactly."""

import pytest

from gdn_apc.fuzz.spec_command import impl_metadata
from gdn_apc.spec import cases, tlc


@pytest.fixture(scope="module")
def stored():
    """All models' cases."""
    return cases.load()


def test_the_stored_cases_are_not_stale(stored):
    """They were made from the modules and the bounds as they are; if not, gdn-apc spec --only cases --record."""
    assert cases.stale(stored) == []


def test_a_changed_module_makes_them_stale(stored, monkeypatch, tmp_path):
    """Any change of a module that the cases follow from."""
    for path in cases.MODULES.glob("*.tla"):
        (tmp_path / path.name).write_text(path.read_text() + ("\n" if path.name == "Contract.tla" else ""))
    monkeypatch.setattr(cases, "MODULES", tmp_path)
    assert cases.stale(stored) == [model.name for model in cases.MODELS]


def test_the_smallest_model_makes_its_stored_cases(stored, tools):
    """The others are made again by gdn-apc spec."""
    model = next(m for m in cases.MODELS if m.name == "every-token")
    made, _ = cases.generate(model, tools)
    assert made in stored


def test_a_contract_that_changes_makes_other_cases(stored, tools, monkeypatch, tmp_path):
    """Not only the digest differs: the dump itself does, and the code is at odds with it."""
    for path in cases.MODULES.glob("*.tla"):
        text = path.read_text().replace(
            "FirstScheduled(n) == n \\div B", "FirstScheduled(n) == (n + 1) \\div B"
        )
        (tmp_path / path.name).write_text(text)
    for module in (cases, tlc):
        monkeypatch.setattr(module, "MODULES", tmp_path)
    model = next(m for m in cases.MODELS if m.name == "long-hits")
    made, _ = cases.generate(model, tools)
    (was,) = (found for found in stored if found.name == model.name)
    assert made.digest != was.digest and made.rows != was.rows
    with pytest.raises(AssertionError, match="block_idx_first_scheduled_token should be"):
        cases.check([made], cases.oracle)


def test_the_cases_are_many_and_varied(stored):
    """Thousands of batches, with all that metadata must tell apart."""
    batches = [[c.rows[i] for i in batch] for c in stored for batch in c.batches]
    rows = {row for batch in batches for row in batch}
    assert len(batches) > 5_000 and {c.B for c in stored} == {1, 2, 3}
    assert any(len(batch) == 3 for batch in batches)
    fresh_one = any(n == 0 and m == 1 for n, m, *_ in rows)
    padding = any(m == 0 for _, m, *_ in rows)
    after_hit_of_two = any(0 in table[:1] and n > 0 for n, _, table, *_ in rows)
    in_place = any(read == write != 0 for *_, read, write, _ in rows)
    assert fresh_one and padding and after_hit_of_two and in_place


def test_the_oracle_agrees_with_every_case(stored):
    """Two definitions of the contract, written apart."""
    assert cases.check(stored, cases.oracle) == sum(len(c.batches) for c in stored)


def test_the_implementation_agrees_with_every_case(stored):
    """gdn_apc.impl.build_metadata, with stale lengths and stale columns where nothing may be looked at."""
    assert cases.check(stored, impl_metadata) == sum(len(c.batches) for c in stored)


@pytest.mark.parametrize(
    "field", ["block_idx_last_computed_token", "write_slot", "chunk_offsets", "has_initial_state"]
)
def test_a_builder_that_is_wrong_is_named(stored, field):
    """The model, the rows, the field, what was expected and what was found."""

    def wrong(rows, B, C):
        found = dict(cases.oracle(rows, B, C))
        found[field] = [not value if field == "has_initial_state" else value + 1 for value in found[field]]
        return found

    with pytest.raises(
        AssertionError, match=rf"three-rows, B = 2, C = 1, rows .* {field} should be \[.*\], is \["
    ):
        cases.check(stored, wrong)
