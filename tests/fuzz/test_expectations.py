"""Known failures: which failures an entry matches, what a file must look like, and when an entry must go.

``pytest tests/fuzz/test_expectations.py``
"""

from __future__ import annotations

import math

import pytest

from gdn_apc.fuzz import expectations, witnesses
from gdn_apc.fuzz.expectations import BadExpectations, Entry, Expectations
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.signatures import groups, signature, stale, worst_ratio
from gdn_apc.fuzz.targets.reference import ReferenceTarget

WRONG = "state(25) is wrong at step 2, head 0: expected -0.03, actual 1e-05, ratio 58.3; 25 of 40 elements are wrong, worst ratio 177"
CASE = witnesses.witness("fresh_one_token_row", ReferenceTarget())


def a_property(message: str | None, error: type[Exception] = Violation) -> Property:
    """One that fails with this message, or holds."""

    def check(target, case):
        if message is None:
            return Checked(comparisons=3)
        raise error(message)

    return Property("values", "", "kernel", lambda target: None, check)


def written(tmp_path, text, name="known.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


# ---- kinds ------------------------------------------------------------------------------------------------------------


def test_a_kind_is_the_first_clause_without_its_numbers():
    """Numbers, signs and lists differ from example to example; NaN, words and names do not."""
    assert signature(WRONG) == "state(#) is wrong at step #, head #: expected #, actual #, ratio #"
    assert signature(WRONG) == signature(WRONG.replace("-0.03", "4.5e+30").replace("25 of 40", "1 of 2"))
    assert signature(WRONG) != signature(WRONG.replace("1e-05", "nan"))
    assert signature("x is [1, 0], expected [], for the rows (n 0, m 1)") == "x is [#], expected [#]"
    assert (
        signature("output depends on the batch (alone): 1 and 2")
        == "output depends on the batch (…): # and #"
    )
    assert worst_ratio(WRONG) == worst_ratio(WRONG + "; expected state(3) of request 0") == 177
    assert worst_ratio("worst ratio inf") == worst_ratio("no ratio") == math.inf
    assert worst_ratio("worst ratio 4.12e+30") == 4.12e30


def test_groups():
    """One group for each property and kind, in the order in which they appear."""
    failures = [
        {"property": p, "message": m} for p, m in [("a", "x 1"), ("b", "x 1"), ("a", "x 2"), ("a", "y 1")]
    ]
    assert [[f["message"] for f in g] for g in groups(failures)] == [["x 1", "x 2"], ["x 1"], ["y 1"]]


# ---- matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, matches",
    [
        (dict(message="is wrong at step"), True),
        (dict(kind=signature(WRONG)), True),
        (dict(message="nan"), False),
        (dict(kind="state(#) is wrong"), False),
        (dict(message="wrong", level="conv"), False),
        (dict(message="wrong", level="core", input=CASE.dtypes.input, state=CASE.dtypes.state), True),
        (dict(message="wrong", input="fp64"), False),
        (dict(message="wrong", event="fresh_one_token_row"), True),
        (dict(message="wrong", event="zero_key"), False),
        (dict(message="wrong", worst_ratio=200), True),
        (dict(message="wrong", worst_ratio=100), False),
    ],
)
def test_what_an_entry_matches(fields, matches):
    """All that it names must agree; a larger error than it allows is another failure."""
    assert Entry("values", "why", **fields).matches("values", CASE, WRONG) is matches
    assert not Entry("values", "why", **fields).matches("far_slots", CASE, WRONG)


def test_a_known_failure_is_passed_over_and_recorded():
    """It compares nothing; another failure of the same property is raised as ever."""
    met = []
    known = Expectations([Entry("values", "why", message="is wrong", name="known.toml[1]")])
    guarded = known.guard(a_property(WRONG), lambda *found: met.append(found))
    checked = guarded.check(None, CASE)
    assert (checked.comparisons, checked.expected) == (0, "known.toml[1]")
    assert met == [(known.entries[0], CASE, WRONG)]
    with pytest.raises(Violation, match="something else"):
        known.guard(a_property("something else"), lambda *found: None).check(None, CASE)
    assert known.guard(a_property(None), lambda *found: None).check(None, CASE).comparisons == 3


def test_only_what_a_target_raises_is_its_failure():
    """Our own exceptions are never known failures."""

    class Raises(ReferenceTarget):
        def conv(self, *args):
            raise RuntimeError("no kernel")

    known = Expectations([Entry("values", "why", message="the target raised RuntimeError: no kernel")])
    prop = load_all()["values"]
    assert known.guard(prop, lambda *found: None).check(Raises(), CASE).comparisons == 0
    with pytest.raises(RuntimeError, match="ours"):
        known.guard(a_property("ours", RuntimeError), lambda *found: None).check(Raises(), CASE)


def test_nothing_known_changes_nothing():
    """Without entries the property itself runs."""
    prop = a_property(None)
    assert Expectations().guard(prop, lambda *found: None) is prop


def test_collecting_takes_in_whatever_fails():
    """For a baseline: each new kind becomes an entry, once."""
    known = Expectations(collect=True)
    guarded = known.guard(a_property(WRONG), lambda *found: None)
    guarded.check(None, CASE)
    guarded.check(None, CASE)
    assert [e.kind for e in known.entries] == [signature(WRONG)]


# ---- files ------------------------------------------------------------------------------------------------------------


def test_a_file(tmp_path):
    """A list of properties is an entry for each; a case lies beside the file."""
    (tmp_path / "one.json").write_text(CASE.to_json())
    path = written(
        tmp_path,
        '[[expect]]\nproperty = ["values", "far_slots"]\nmessage = "nan"\nreason = "r"\n'
        '[[expect]]\nproperty = "metadata"\nkind = "x is #"\ncase = "one.json"\nreason = "s"\n',
    )
    known = expectations.load([str(path)])
    assert [(e.property, e.name) for e in known.entries] == [
        ("values", "known.toml[1] values"),
        ("far_slots", "known.toml[1] far_slots"),
        ("metadata", "known.toml[2]"),
    ]
    assert known.cases == {"known.toml[2]": CASE}
    assert not any(e.baseline for e in known.entries)
    assert all(e.baseline for e in expectations.load([], str(path)).entries)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[[expect]", "cannot be read as expected failures"),
        ("x = 1", "has 'x' at its top, expected [[expect]] entries only"),
        ('[[expect]]\nmessage = "m"\nreason = "r"', "known.toml[1]: lacks 'property'"),
        ('[[expect]]\nproperty = "values"\nmessage = "m"', "known.toml[1]: lacks 'reason'"),
        (
            '[[expect]]\nproperty = "values"\nreason = "r"',
            "needs either message, a regular expression, or kind",
        ),
        ('[[expect]]\nproperty = "values"\nreason = "r"\nmessage = "m"\nkind = "k"', "and not both"),
        (
            '[[expect]]\nproperty = "valeus"\nreason = "r"\nmessage = "m"',
            "property 'valeus' does not exist; choose",
        ),
        ('[[expect]]\nproperty = "values"\nreason = "r"\nmessage = "("', "message is no regular expression"),
        (
            '[[expect]]\nproperty = "values"\nreason = "r"\nmessage = "m"\nevent = "e"',
            "event 'e' is not in the ledger",
        ),
        (
            '[[expect]]\nproperty = "values"\nreason = "r"\nmessage = "m"\nlevl = "conv"',
            "has 'levl', expected some of",
        ),
        (
            '[[expect]]\nproperty = "values"\nreason = "r"\nmessage = "m"\ncase = "no.json"',
            "no.json cannot be read",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, text, message):
    """It is named with the entry and what is wrong; a campaign then ends with status 4."""
    path = written(tmp_path, text)
    with pytest.raises(BadExpectations) as e:
        expectations.load([str(path)])
    assert message in str(e.value)


def test_a_missing_file_is_bad_usage(tmp_path):
    """As an option it is status 4, like a missing target."""
    from gdn_apc.fuzz.targets import TargetUnavailable

    with pytest.raises(TargetUnavailable, match=r"no\.toml: cannot be read as expected failures"):
        expectations.of_options({"gdn_expect": [str(tmp_path / "no.toml")]})


# ---- stale entries ----------------------------------------------------------------------------------------------------


def entry(**more):
    record = {"name": "known.toml[1]", "property": "values", "reason": "r", "baseline": False, "asked": None}
    return {**record, "has_case": False, **more}


@pytest.mark.parametrize(
    "fields, seen, enough, mended, says",
    [
        ({}, 3, True, {}, None),
        ({}, 0, True, {}, "known.toml[1] no longer fails: no example of values matched it (r); remove it"),
        ({}, 0, False, {}, None),  # too few examples to tell
        ({"has_case": True}, 0, True, {}, None),  # its case decides
        (
            {"has_case": True},
            0,
            False,
            {"known.toml[1]": "its case holds"},
            "no longer fails: its case holds (r)",
        ),
        (
            {"asked": "no kernels"},
            0,
            False,
            {},
            "matches nothing: the target is not asked for values (no kernels)",
        ),
        ({"baseline": True}, 0, True, {"known.toml[1]": "its case holds"}, None),
    ],
)
def test_stale_entries(fields, seen, enough, mended, says):
    """An entry that no longer fails, or that matches nothing, is an error; one of a baseline is not."""
    found = stale([entry(**fields)], {"known.toml[1]": seen}, lambda name: enough, mended)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_cases_that_no_longer_fail():
    """A case that holds, or that fails in another way than its entry says."""

    def mended(message, pattern):
        known = Expectations([Entry("values", "r", message=pattern, name="e")], cases={"e": CASE})
        return list(known.mended({"values": a_property(message)}, None))

    assert mended(WRONG, "is wrong") == []
    assert mended(None, "is wrong") == [("e", "its case holds")]
    assert mended("other\nmore", "is wrong") == [("e", "its case fails in another way: other")]


# ---- a baseline -------------------------------------------------------------------------------------------------------


def test_a_baseline_is_read_back(tmp_path):
    """What was met is matched, with some room for its size; what was not met is not."""
    start = {"event": "start", "target": "t", "seed": 1, "device": "cpu", "versions": {"torch": "2"}}
    met = [
        {"event": "expected", "property": "values", "level": "core", "message": WRONG},
        {"event": "failure", "property": "values", "level": "core", "message": WRONG.replace("177", "90")},
        {"event": "example", "property": "values", "level": "core"},
        {"event": "failure", "property": "write_set", "level": "core", "message": 'changed "slot" 3 \\ x'},
    ]
    path = tmp_path / "base.toml"
    assert expectations.write(path, [start, *met]) == 2
    assert path.read_text().startswith("# Baseline of target t, seed 1, on cpu.\n# torch 2\n")
    known = expectations.load([], str(path))
    assert known.find("values", CASE, WRONG).worst_ratio == 4 * 177
    assert known.find("values", CASE, WRONG.replace("177", "709")) is None
    assert known.find("write_set", CASE, 'changed "slot" 9 \\ x') is not None
    assert known.find("read_set", CASE, 'changed "slot" 9 \\ x') is None
