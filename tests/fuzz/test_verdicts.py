"""Surveys go on past failures, sort them by kind, and make one page. ``pytest tests/fuzz/test_verdicts.py``"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gdn_apc.fuzz import expectations, verdicts
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.reference import ReferenceTarget
from gdn_apc.fuzz.verdicts import Surveyor


class Faulty(ReferenceTarget):
    """The reference, which reads its slot where a request's first step has one token (vllm 51562), on one level."""

    name = "faulty"
    claims = Claims(seams=frozenset({"delta"}), state_dtypes=frozenset({"fp32"}))

    def read_slot(self, line, batch):
        if line.n == 0 and line.m == 1:
            return line.table[0] or None
        return super().read_slot(line, batch)


@pytest.fixture(scope="module")
def survey():
    """A survey of the faulty target."""
    return Surveyor(Faulty(), shrink_seconds=5).run(22, ["values", "write_set", "batch_invariance"])


def test_a_survey_goes_on_past_failures(survey):
    """One fault is one kind of failure of each property that sees it, with its count; the rest is compared."""
    assert survey.compared()["write_set"] == 22
    assert survey.compared()["values"] > 40  # witnesses and examples
    kinds = {k.property: k for k in survey.kinds}
    assert "values" in kinds and "write_set" not in kinds
    assert kinds["values"].count > 1 and "fresh_one_token_row" in kinds["values"].witnesses
    assert survey.new == survey.kinds


def test_kinds_are_made_small_and_still_fail(survey):
    """The case of a kind is as small as it can be, and fails with the message that is shown."""
    kinds = [k for k in survey.kinds if k.property == "values"]
    assert min(k.case.num_tokens for k in kinds) == 1
    for kind in kinds:
        assert kind.case.num_tokens <= 4
        with pytest.raises(Violation) as e:
            load_all()["values"].check(Faulty(), kind.case)
        assert str(e.value) == kind.message


def test_the_matrix_blames_the_clause_that_all_failures_show(survey):
    """A fresh start is broken, the write set is not, and what was not asked is not shown."""
    rows = {r.clause.name: r for r in verdicts.matrix(json.loads(survey.to_json()))}
    assert rows["fresh_start"].verdict == "broken (values)"
    assert rows["writes"].verdict == "held"
    assert rows["reads"].state == "not shown"
    assert rows["bf16 inputs, bf16 state"].state == "not claimed"


def test_known_kinds_have_reasons(survey, tmp_path):
    """With an entry for it nothing is new, and the page says why."""
    text = '[[expect]]\nproperty = ["values", "batch_invariance"]\nmessage = "nan|wrong|depends"\nreason = "issue 7"\n'
    (tmp_path / "known.toml").write_text(text)
    known = expectations.load([str(tmp_path / "known.toml")])
    again = Surveyor(Faulty(), known, shrink_seconds=0).run(4, ["values"])
    assert again.new == [] and again.kinds[0].reason == "issue 7"
    assert "issue 7" in verdicts.page(json.loads(again.to_json()))
    assert "**new**" in verdicts.page(json.loads(survey.to_json()))


def test_surveys_of_several_properties_are_judged_together(survey):
    """Run side by side, they count as one."""
    parts = [
        json.loads(Surveyor(Faulty(), shrink_seconds=0).run(22, [name]).to_json())
        for name in ("write_set", "read_set")
    ]
    rows = {r.clause.name: r for r in verdicts.matrix(verdicts.merge(parts))}
    assert (rows["writes"].state, rows["reads"].state) == ("held", "broken")
    assert rows["skips_null"].compared == sum(
        {r.clause.name: r for r in verdicts.matrix(p)}["skips_null"].compared for p in parts
    )


def test_the_command(tmp_path, capsys, monkeypatch):
    """Prints the page, keeps the record and the cases, and its status says whether a kind is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gdn_apc.fuzz.targets.load", lambda name: Faulty())
    asked = ["x", "--property", "values", "--examples", "1", "--shrink", "0"]
    assert verdicts.main([*asked, "--json", "x.json", "--cases", "cases"]) == 1
    assert "| fresh_start | yes |" in capsys.readouterr().out
    record = json.loads((tmp_path / "x.json").read_text())
    kept = [Case.from_json(p.read_text()) for p in (tmp_path / "cases").glob("x-values-*.json")]
    assert len(kept) == len(record["kinds"]) > 0
    assert all(Case.from_json(json.dumps(k["case"])) in kept for k in record["kinds"])
    assert verdicts.main(["x.json", "--merge"]) == 1
    assert "## faulty" in capsys.readouterr().out


def test_a_missing_target_is_status_4(capsys):
    """As in a campaign."""
    assert verdicts.main(["no-such-target"]) == 4
    assert "'no-such-target' is not known" in capsys.readouterr().err


def test_a_survey_ends_in_time():
    """What was asked is judged; what was not is not shown."""
    short = Surveyor(Faulty(), shrink_seconds=0.1, seconds=0.3).run(500, ["write_set", "values"])
    compared = short.compared()
    assert 0 < compared["write_set"] + compared.get("values", 0) < 500 and short.seconds < 30
    rows = {r.clause.name: r for r in verdicts.matrix(json.loads(short.to_json()))}
    assert rows["reads"].verdict.startswith("not shown")


def test_no_tuning(monkeypatch):
    """An autotuned kernel runs in its first configuration, and nothing is timed."""
    from triton.runtime.autotuner import Autotuner

    from gdn_apc.fuzz.interpreter._autotune import first_configurations

    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    first_configurations()
    ran = []
    tuner = Autotuner.__new__(Autotuner)
    tuner.arg_names = ["x"]
    tuner.configs = [SimpleNamespace(pre_hook=None, all_kwargs=lambda n=n: {"num_warps": n}) for n in (2, 4)]
    tuner.fn = SimpleNamespace(run=lambda *args, **kwargs: ran.append((args, kwargs)))
    tuner.run(7, grid=(1,))
    assert ran == [((7,), {"grid": (1,), "num_warps": 2})] and tuner.best_config is tuner.configs[0]
