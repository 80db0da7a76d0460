"""Triage: for each planted fault the layer, the seam, the first wrong place and the kind. ``pytest tests/fuzz/test_triage.py``."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from test_shrink import first

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Row, Sizes, Step
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.targets.planted import FAULTS
from gdn_apc.fuzz.targets.reference import ReferenceTarget
from gdn_apc.fuzz.triage import after, classes, files, picture, report, seams
from gdn_apc.fuzz.triage.localise import localise
from gdn_apc.fuzz.triage.moves import what_state
from gdn_apc.fuzz.triage.observe import Seen, fickle
from gdn_apc.fuzz.triage.survey import survey

SIZES = Sizes(H=1, HV=1, K=8, V=8, W=4, B=2, C=16)
FP32 = Dtypes("fp32", "fp32", "fp32")


def case_of(
    prop: str,
    level: str,
    steps: list[list[tuple]],
    lengths: tuple = (9,),
    sizes: Sizes = SIZES,
    dtypes: Dtypes = FP32,
    **more,
) -> Case:
    """A case with these rows ``(request, n, m, table)``; a length may be ``(length, parent, shared)``."""
    requests = [Request(*x) if isinstance(x, tuple) else Request(x) for x in lengths]
    slots = max((slot for step in steps for *_, table in step for slot in table), default=0)
    more.setdefault("inputs", Inputs(3))
    more.setdefault("pool", Pool(slots + 2))
    return Case(
        prop, level, sizes, dtypes, requests=tuple(requests),
        steps=tuple(Step(tuple(Row(r, n, m, tuple(t)) for r, n, m, t in step)) for step in steps), **more,
    )  # fmt: skip


HIT = [[(0, 0, 2, (1,))], [(1, 2, 2, (1, 2))]]
"""A request that hits another one's block and computes two tokens more."""
SHARED = (2, (4, 0, 2))
TWIN = [[(0, 0, 2, (1,))], [(1, 2, 3, (1, 2, 3))], [(2, 2, 2, (1, 4))], [(2, 4, 1, (1, 4, 5))]]

EXPECTED = [
    # fault, case, kind, layer, kernel, seam, part of the place
    ("DropsBoundary", case_of("values", "delta", [[(0, 0, 3, (1, 2))]]),
     "boundary not written", "indexing", "delta chunk", "write", {"column": 0, "slot": 1, "position": 2}),
    ("Transposes", case_of("values", "delta", [[(0, 0, 3, (1, 2))]]),
     "transposed state", "indexing", "delta chunk", "write", {"column": 0}),
    ("ReadsFirstScheduled", case_of("values", "delta", HIT, SHARED),
     "another slot is read", "indexing", "delta chunk", "read", {"step": 1, "request": 1, "position": 2, "block": 1}),
    ("WritesShared", case_of("values", "delta", HIT, SHARED),
     "shared block written", "indexing", "delta chunk", "write", {"step": 1, "column": 1, "slot": 2}),
    ("WritesShared", case_of("values", "conv", HIT, SHARED),
     "short step writes where it read", "indexing", "conv", "write", {"step": 1}),
    ("StateByLength", case_of("values", "delta", [[(0, 0, 1, (1,))]]),
     "fresh row reads a state", "indexing", "delta recurrent", "read", {"position": 0, "head": 0}),
    ("StaleWindow", case_of("values", "conv", HIT, SHARED),
     "window forgets", "indexing", "conv", "write", {"step": 1, "column": 1}),
    ("IgnoresHit", case_of("values", "delta", HIT, SHARED),
     "state ignored", "indexing", "delta chunk", "read", {"step": 1, "position": 2}),
    ("CarriesUnrounded", case_of("values", "delta", [[(0, 0, 5, (1, 2, 3))]], dtypes=Dtypes("fp32", "bf16", "fp32")),
     "carry not persisted", "numerics", "delta chunk", "carry", {"position": 2, "block": 1, "chunk": 1, "chunks": 3}),
    ("RoundsBeta", case_of("values", "delta", [[(0, 0, 3, (1, 2))]]),
     "operand rounded", "numerics", "delta chunk", "compute", {"position": 0}),
    ("MixesHeads", case_of("values", "delta", [[(0, 0, 3, (1, 2))]], sizes=dataclasses.replace(SIZES, H=2, HV=4)),
     "heads mixed", "indexing", "delta chunk", "compute", {"head": 1, "position": 0}),
    ("DefaultsScale", case_of("values", "delta", [[(0, 0, 3, (1, 2))]], options=Options(scale=0.0)),
     "option misread", "numerics", "delta chunk", "compute", {"position": 0}),
    ("WritesNull", case_of("write_set", "delta", [[(0, 0, 3, (1, 0))]]),
     "null block written", "indexing", "delta chunk", "write", {"slot": 0, "column": 1}),
    ("WritesPastState", case_of("write_set", "delta", [[(0, 0, 1, (1,))]]),
     "writes outside", "indexing", "", "write", {"step": 0, "slot": 2}),
    ("RunsPadding", case_of("write_set", "delta", [[(0, 0, 2, (1,))], [(None, 2, 0, (1,)), (0, 2, 1, (1, 2))]]),
     "padding acts", "indexing", "delta recurrent", "write", {"step": 1, "slot": 1}),
    ("Remembers", case_of("hit_is_used", "delta", HIT, SHARED, choice={"reader": 0, "noise": 1}),
     "state kept elsewhere", "indexing", "delta chunk", "read", {"step": 1, "position": 2}),
    ("MultipliesForeign", case_of("read_set", "delta", [[(0, 0, 2, (1,))]], choice={"tail": 0, "spoil": 0, "widen": 0}),
     "poison gets through", "indexing", "delta chunk", "read", {"position": 0}),
    ("MultipliesTail", case_of("read_set", "delta", [[(0, 0, 2, (1,))]], choice={"tail": 7, "spoil": 0, "widen": 0}),
     "poison gets through", "indexing", "delta chunk", "read", {"position": 0}),
    ("DependsOnBatch", case_of("batch_invariance", "delta", [[(0, 0, 9, (1, 2, 3, 4, 5)), (1, 0, 9, (6, 7, 8, 9, 10))]], (9, 9),
                               sizes=dataclasses.replace(SIZES, B=16), choice={"variant": "alone", "seed": 0, "tail": 0}),
     "depends on its neighbours", "numerics", "delta chunk", "", {"step": 0}),
    ("DependsOnSlot", case_of("batch_invariance", "delta", [[(0, 0, 9, (2,))]], sizes=dataclasses.replace(SIZES, B=16),
                              choice={"variant": "other_slots", "seed": 1, "tail": 0}),
     "depends on where it lies", "indexing", "delta chunk", "", {"step": 0}),
    ("GridFromStart", case_of("free_cuts", "delta",
                              [[(0, 0, 19, (1,))], [(1, 19, 1, (1, 2))], [(1, 20, 17, (0, 2))], [(2, 19, 1, (1, 3))],
                               [(2, 20, 15, (0, 3))], [(2, 35, 2, (0, 3))]],
                              (19, (37, 0, 19), (37, 1, 37)), sizes=dataclasses.replace(SIZES, B=19), inputs=Inputs(0),
                              choice={"cut": 2, "end": 37, "one": 1, "start": 20}),
     "grid from the start", "numerics", "delta chunk", "compute", {"position": 35}),
    ("LastColumnTooFar", case_of("metadata", "metadata", [[(0, 0, 2, (1, 2))]], ()),
     "wrong indices", "metadata", "", "compute", {"field": "block_idx_last_scheduled_token", "row": 0}),
    ("KeepsPaddedIndices", case_of("metadata", "metadata", [[(0, 0, 2, (1, 2)), (None, 4, 0, (1,))]], ()),
     "wrong indices", "metadata", "", "compute", {"field": "block_idx_first_scheduled_token", "row": 1}),
]  # fmt: skip


def failing(fault: str, case: Case) -> tuple[ReferenceTarget, Violation]:
    """The target with the fault, and how the case fails on it."""
    target = FAULTS[fault]()
    with pytest.raises(Violation) as e:
        load_all()[case.property].check(target, case)
    return target, e.value


@pytest.mark.parametrize(
    ("fault", "case", "kind", "layer", "kernel", "seam", "place"),
    EXPECTED,
    ids=[f"{f}-{c.property}-{c.level}" for f, c, *_ in EXPECTED],
)
def test_a_planted_fault_is_located_and_named(fault, case, kind, layer, kernel, seam, place):
    """Layer, kernel, seam and place are those of the plant, and the diagnosis is its kind."""
    target, violation = failing(fault, case)

    located = localise(target, case, violation)

    found = classes.classify(located.to_classes())
    assert (found[0].name, located.layer, located.kernel, located.seam) == (kind, layer, kernel, seam), (
        located.evidence
    )
    assert {k: located.where.get(k) for k in place} == place
    assert located.says


def test_nothing_is_found_where_nothing_is_wrong():
    """The reference itself has no wrong row, no stray byte, and its row in pieces is right."""
    case = case_of("values", "core", TWIN[:2], (2, (5, 0, 2)))
    found = survey(ReferenceTarget(), case)

    assert not found.wrong and found.first is None and len(found.views) == 2
    assert seams.pieces(ReferenceTarget(), found, found.views[1]) == [(2, 4, True), (4, 5, True)]
    assert seams.exposed(ReferenceTarget(), found, found.views[1]) == []
    assert seams.inherited(ReferenceTarget(), found, found.views[1]) is True


class SwapsColumns(ReferenceTarget):
    """The first two columns of a step are stored in each other's slots."""

    def write_slots(self, line, batch):
        slots = super().write_slots(line, batch)
        if len(slots) > 1:
            (a, first), (b, second), *rest = slots
            return [(a, second), (b, first), *rest]
        return slots


def test_a_slot_that_holds_what_another_column_must_hold_is_called_so():
    """The sentence a developer needs, for states and for windows."""
    case = case_of("values", "core", [[(0, 0, 5, (1, 3, 2))]])
    found = survey(SwapsColumns(), case)
    located = localise(SwapsColumns(), case, Violation("x"))

    assert what_state(found, found.first, 0).says == "slot 1 (column 0) holds what column 1 must hold"
    assert "slot 1 (column 0) holds what column 1 must hold" in located.evidence
    assert located.kernel == "conv and delta chunk" and located.seam == "write"
    assert classes.classify(located.to_classes())[0].name == "another block's state"


class WrongGates(ReferenceTarget):
    """What lies between the convolution and the delta rule is wrong."""

    def gates(self, layer, a, b):
        g, beta = super().gates(layer, a, b)
        return g * 1.1, beta


class WrongDelta(ReferenceTarget):
    """The delta rule is wrong."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, v * 1.01, g, beta, ssm_state, batch)


class WrongConv(ReferenceTarget):
    """The convolution's outputs are wrong, its windows are right."""

    def conv(self, layer, x, conv_state, batch):
        return super().conv(layer, x, conv_state, batch) * 1.01


@pytest.mark.parametrize(
    ("target", "kernel"), [(WrongConv, "conv"), (WrongGates, "gates"), (WrongDelta, "delta chunk")]
)
def test_seams_of_the_core_tell_the_kernels_apart(target, kernel):
    """Each of the three parts, given the oracle's inputs, is right or wrong by itself."""
    case = case_of("values", "core", [[(0, 0, 3, (1, 2))]])

    assert localise(target(), case, Violation("x")).kernel == kernel


class ReadsNeighbour(ReferenceTarget):
    """The second row of a batch starts from the state of the first one's slot."""

    def read_slot(self, line, batch):
        lines = list(self.lines(batch))
        return super().read_slot(lines[0] if len(lines) > 1 else line, batch)


def test_a_row_that_is_right_by_itself_is_told_from_one_that_is_not():
    """Its neighbour's slot is named."""
    steps = [[(0, 0, 2, (1,)), (1, 0, 2, (2,))], [(0, 2, 2, (1, 3)), (1, 2, 2, (2, 4))]]
    case = case_of("values", "delta", steps, (4, 4))

    located = localise(ReadsNeighbour(), case, Violation("x"))

    assert "in a batch of its own the row is right: the rows around it matter" in located.evidence
    assert "it starts from what slot 1 holds, column 0 of row 0" in located.evidence
    assert (located.where["row"], located.seam) == (1, "read")


class Raises(ReferenceTarget):
    """Refuses a third token."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        if len(q) > 2:
            raise IndexError("block table has too few columns")
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch)


def test_an_exception_is_a_finding_of_its_own():
    """Class, and the step in which it was raised."""
    case = case_of("values", "delta", [[(0, 0, 2, (1,))], [(0, 2, 3, (1, 2, 3))]])
    located = localise(Raises(), case, Violation("the target raised IndexError", raised="IndexError"))

    assert classes.classify(located.to_classes())[0].name == "crash"
    assert located.where["step"] == 1


def test_lives_of_the_cache_machine_become_explicit_steps():
    """A fault in the kernels found there is located like any other."""
    prop = load_all()["machine_kernels"]
    target = FAULTS["DropsBoundary"]()

    def fails(drawn: Case) -> bool:
        try:
            prop.check(target, drawn)
        except Violation:
            return True
        return False

    case = first(prop.strategy(target), fails, tokens=0)
    located = localise(target, case, Violation("x"))

    assert located.evidence[0].startswith("in a life of the cache machine")
    assert located.seam == "write" and located.case.steps and "step" in located.where


def test_every_class_has_a_kind_and_every_kind_a_class():
    """The names agree; speculation, scheduling and resources are named even where no case reaches them."""
    assert {k.fault for k in classes.KINDS} <= set(classes.CLASSES)
    assert {"spec-decode", "scheduler"} == set(classes.CLASSES) - {k.fault for k in classes.KINDS}
    assert len({k.name for k in classes.KINDS}) == len(classes.KINDS)


def test_evidence_that_says_nothing_has_no_diagnosis():
    assert classes.classify(classes.Evidence("", "", "", frozenset(), "values")) == []


# ---- what is shown -------------------------------------------------------------------------------------------------


def located_drop():
    case = EXPECTED[0][1]
    target, violation = failing("DropsBoundary", case)
    return target, case, violation, localise(target, case, violation)


def test_the_picture_shows_positions_heads_and_edges():
    """Errors and block tables, in text."""
    *_, located = located_drop()

    errors = picture.errors(located)
    assert (errors.lanes, errors.start, errors.edges) == (["head 0"], 0, {0, 2})
    assert picture.error_text(errors)[1:] == ["         0  2", "head 0  |..|."]
    assert picture.table_text(picture.tables(located)) == [
        "column  slot  must hold  holds",
        "0       1     state(2)   never was written  <-- wrong",
        "1       2     state(3)   state(3)",
    ]


def test_errors_beyond_the_tolerance_and_nan_have_marks_of_their_own():
    errors = picture.Errors("t", ["head 0"], 0, [[0.1, 0.7, 1.5, math.inf, math.nan]], {0}, {0, 2})

    assert picture.error_text(errors)[2] == "head 0  |.-:#! "


def test_the_picture_is_drawn(tmp_path):
    """An SVG with both parts; nothing of it depends on the clock."""
    pytest.importorskip("matplotlib")
    *_, located = located_drop()

    assert picture.draw(located, tmp_path / "a.svg", "headline") and picture.draw(
        located, tmp_path / "b.png", "headline"
    )
    text = (tmp_path / "a.svg").read_text()
    assert "<svg" in text and "<dc:date>" not in text and (tmp_path / "b.png").read_bytes()[1:4] == b"PNG"


def test_files_lie_beside_the_case_and_say_it_all(tmp_path):
    """JSON, text and picture; what a summary shows is the text."""
    target, case, violation, _ = located_drop()
    run = RunFolder(tmp_path).create()
    path = run.save_case(case, {"target": "reference"})
    assert files.read(path) is None and files.shown(path) == files.brief(path) == files.svg(path) == ""

    found = report.triage(load_all()["values"], target, case, violation)
    report.write(found, path)

    record = json.loads((tmp_path / "cases" / "triage" / f"{path.stem}.json").read_text())
    assert (record["class"], record["kind"], record["layer"]) == (
        "kernel-indexing",
        "boundary not written",
        "indexing",
    )
    assert (
        len(record["runs"]) == 3 and len({r["digest"] for r in record["runs"]}) == 1 and not record["broke"]
    )
    assert files.brief(path).startswith("kernel-indexing: boundary not written (step 0, row 0, request 0")
    assert "never was written  <-- wrong" in files.shown(path)
    assert "  what     the write: slot 1 (column 0) never was written: the write is missing" in found.text()


class Fickle(ReferenceTarget):
    """Wrong in its first call of each three."""

    calls = 0

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        self.calls += 1
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch) + (self.calls % 3 == 1)


def test_a_flaky_failure_is_reported_with_both_digests():
    """Not dropped: nondeterminism is a kind."""
    found = report.triage(load_all()["values"], Fickle(), EXPECTED[0][1], Violation("it failed once"))

    record = found.record()
    digests = [r["digest"] for r in record["runs"]]
    assert record["verdict"] == "fickle" and found.kinds[0].name == "fickle"
    assert digests[0] in record["fickle"] and digests[1] in record["fickle"] and digests[0] != digests[1]


def test_a_failure_that_never_comes_back_is_still_reported():
    """The case holds in every rerun."""
    found = report.triage(
        load_all()["values"], ReferenceTarget(), EXPECTED[0][1], Violation("it failed once")
    )

    assert (
        found.kinds[0].name == "fickle"
        and "it failed when it was found, and not since" in found.located.evidence
    )
    assert fickle([Seen(None, None, "a", 1), Seen(None, None, "a", 1)]) == ""


def test_experiments_that_break_cost_nothing_else(monkeypatch):
    """The failure's own place stays, and the break is named."""
    monkeypatch.setattr(report, "localise", lambda *a: 1 / 0)
    target, case, violation, _ = located_drop()

    found = report.triage(load_all()["values"], target, case, violation)

    assert found.broke == ["localising broke: ZeroDivisionError: division by zero"]
    assert found.located.where["column"] == 0 and found.record()["message"] == str(violation)


def test_a_campaigns_failure_is_triaged_and_its_script_stands_alone(tmp_path, monkeypatch):
    """Files, the event, the digest in the case, and a script."""
    target, case, violation, _ = located_drop()
    run = RunFolder(tmp_path).create()
    name = "gdn_apc.fuzz.targets.planted:DropsBoundary"
    path = run.save_failure(case, str(violation), {"target": name}, violation.where)

    after.after_failure(run, path, load_all()["values"], target, violation)

    event = run.events()[-1]
    assert (event["event"], event["diagnosis"], event["seam"]) == ("triage", "boundary not written", "write")
    assert json.loads(path.read_text())["provenance"]["digest"] == files.read(path)["runs"][0]["digest"]
    assert "from gdn_apc" not in (tmp_path / "repro" / f"{path.stem}.py").read_text()


def test_only_so_many_failures_of_a_campaign_are_triaged(tmp_path, monkeypatch):
    """The rest are named, with the command that does it."""
    monkeypatch.setattr(after, "MOST", 0)
    target, case, violation, _ = located_drop()
    run = RunFolder(tmp_path).create()
    path = run.save_case(case, {})

    after.after_failure(run, path, load_all()["values"], target, violation)

    assert run.events()[-1]["left_out"] == f"0 were triaged before; gdn-apc triage {path}"
    assert files.read(path) is None


def test_triage_never_costs_the_failure(tmp_path, monkeypatch):
    """Whatever breaks is an event."""
    monkeypatch.setattr(report, "triage", lambda *a, **k: 1 / 0)
    target, case, violation, _ = located_drop()
    run = RunFolder(tmp_path).create()
    path = run.save_case(case, {})

    after.after_failure(run, path, load_all()["values"], target, violation)

    assert run.events()[-1]["broke"] == "ZeroDivisionError: division by zero"


def test_the_command_triages_a_case_in_a_file(tmp_path, capfd):
    """What it prints, its status, and the smaller case that it leaves when asked to shrink."""
    from gdn_apc.fuzz import cli

    case = case_of("values", "delta", [[(0, 0, 5, (1, 2, 3))]])
    path = tmp_path / "case.json"
    path.write_text(case.to_json(target="gdn_apc.fuzz.targets.planted:DropsBoundary"))

    assert cli.main(["triage", str(path), "--shrink", "20"]) == 1
    said = capfd.readouterr().out
    assert "shrunk from 5 to 2 tokens" in said or "shrunk from 5 to 3 tokens" in said
    assert (
        "class    kernel-indexing: boundary not written" in said and "a script that needs no suite: " in said
    )

    path.write_text(case.to_json(target="gdn_apc.fuzz.targets.reference:ReferenceTarget"))
    assert cli.main(["triage", str(path)]) == 0
    path.write_text("{")
    assert cli.main(["triage", str(path)]) == 4
    assert "cannot be triaged" in capfd.readouterr().err


KILLER = """
import os, signal
from gdn_apc.fuzz.targets.reference import ReferenceTarget

class Killer(ReferenceTarget):
    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        if len(q) == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch)
"""


def test_a_case_that_kills_its_process_is_triaged_from_outside(tmp_path, capfd, monkeypatch):
    """The step that does it is found by running beginnings of the case."""
    from gdn_apc.fuzz import cli

    (tmp_path / "killer_adapter.py").write_text(KILLER)
    monkeypatch.chdir(tmp_path)
    case = case_of("values", "delta", [[(0, 0, 2, (1,))], [(0, 2, 3, (1, 2, 3))], [(0, 5, 1, (1, 2, 3))]])
    path = tmp_path / "case.json"
    path.write_text(case.to_json(target="killer_adapter:Killer"))

    assert cli.main(["triage", str(path)]) == 1
    said = capfd.readouterr().out
    assert "the process dies of SIGSEGV in step 1, which runs the rows (n 2, m 3, table [1, 2, 3])" in said
    record = files.read(path)
    assert (record["class"], record["kind"], record["where"]) == ("resource", "crash", {"step": 1})


def test_a_summary_shows_the_triage_of_each_failure(tmp_path):
    """In Markdown for the pull request, and a line for the terminal."""
    from gdn_apc.fuzz import page
    from gdn_apc.fuzz.summary import Totals

    target, case, violation, _ = located_drop()
    run = RunFolder(tmp_path).create()
    path = run.save_failure(
        case, str(violation), {"target": "t"}, violation.where, shard=0, round=0, phase="generate"
    )
    report.write(report.triage(load_all()["values"], target, case, violation, reruns=1), path)

    text = page.render(Totals.of(run.events()), run)
    assert "TRIAGE of values on reference" in text and "never was written  <-- wrong" in text
    assert any(
        line.startswith("  triage: kernel-indexing: boundary not written") for line in page.write(run)[1]
    )


def test_small_models_of_wrong_sums_are_told_apart():
    """The tolerance of a model's match is far below the difference between models."""
    torch.manual_seed(0)
    case = case_of("values", "delta", [[(0, 0, 3, (1, 2))]])
    for fault, says in (("RoundsBeta", "beta is rounded to bf16"),):
        target, violation = failing(fault, case)
        assert says in localise(target, case, violation).evidence


class RoundsBetaInCore(ReferenceTarget):
    """The gates of the core lose bits of beta; its delta rule and its convolution, asked alone, are right."""

    def gates(self, layer, a, b):
        g, beta = super().gates(layer, a, b)
        return g, beta.bfloat16().float()


def test_models_start_from_the_targets_own_convolution():
    """With bf16 inputs a tie of the convolution may be rounded the other way; what comes after is explained all the same."""
    steps = [[(0, 0, 2, (1,))], [(0, 2, 1, (1, 2))]]
    case = case_of("values", "core", steps, (3,), dtypes=Dtypes("bf16", "fp32", "bf16"))

    located = localise(RoundsBetaInCore(), case, Violation("x"))

    assert located.kernel == "gates" and located.says == "beta is rounded to bf16"
    assert classes.classify(located.to_classes())[0].name == "operand rounded"


class TwoFaults(ReferenceTarget):
    """A fresh row of one token reads its slot, and beta is rounded everywhere."""

    def read_slot(self, line, batch):
        return line.table[0] if line.n == 0 and line.m == 1 else super().read_slot(line, batch)

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, v, g, beta.bfloat16().float(), ssm_state, batch)


def test_a_smaller_case_shows_the_same_fault(tmp_path, capsys):
    """Of two faults, the commoner one does not take the place of the one that was found."""
    case = case_of("values", "delta", [[(0, 0, 5, (1, 2, 3))]])
    path = tmp_path / "case.json"
    path.write_text(case.to_json(target=f"{__name__}:TwoFaults"))

    assert after.triage_file(path, None, 20.0, print, None) == 1
    said = capsys.readouterr().out
    assert "dtype: operand rounded" in said and "fresh row" not in said
    kinds = [
        Violation("x is nan; 3 of 4"),
        Violation("x 1.5, tolerance 1; inf"),
        Violation("", raised="E"),
        Violation("", race="r"),
    ]
    assert [after.sort_of(v) for v in kinds] == ["not finite", "finite", "raised E", "race"]
