"""Scripts that show a failure without the suite: only torch and the target. ``pytest tests/fuzz/test_standalone.py``."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys

import pytest
import torch
from test_triage import EXPECTED, case_of, failing

from gdn_apc import oracle
from gdn_apc.fuzz.case import Dtypes, Inputs, Options
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.runner import World, truth
from gdn_apc.fuzz.targets.reference import ReferenceTarget
from gdn_apc.fuzz.triage import _repro, report, standalone

BLOCKED = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hypothesis", {allowed}"gdn_apc"):
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
runpy.run_path({script!r}, run_name="__main__")
"""
"""Runs a script in a process where the package cannot be imported, or only its implementation."""

OURS = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hypothesis" or name.startswith(("gdn_apc.fuzz", "gdn_apc.oracle", "gdn_apc.spec")):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
runpy.run_path(SCRIPT, run_name="__main__")
"""


def run(code: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=300, check=False
    )


def alone(script, cwd) -> subprocess.CompletedProcess:
    """The script where gdn_apc cannot be imported."""
    return run(BLOCKED.format(allowed="", script=str(script)), cwd)


def written(fault: str, case, tmp_path):
    """The script of a planted fault's case, which was tried once already."""
    target, violation = failing(fault, case)
    found = report.triage(load_all()[case.property], target, case, violation, reruns=1)
    path = tmp_path / "repro.py"
    provenance = {"target": f"gdn_apc.fuzz.targets.planted:{fault}", "versions": {"torch": torch.__version__}}
    assert standalone.save(found, path, provenance) == ""
    return path


KINDS_OF_CHECK = [
    ("DropsBoundary", "values", "is wrong at head 0, value 0, key 0"),
    ("StaleWindow", "values", "the window (step 1, row 0, request 1, column 1, slot 2) is wrong at input"),
    ("WritesNull", "write_set", "step 0 changed slot 0, ssm"),
    ("Remembers", "hit_is_used", "is wrong at"),
    ("MultipliesForeign", "read_set", "is wrong at"),
    ("DependsOnSlot", "batch_invariance", "depends on the batch around it or where it lies (other_slots)"),
    ("GridFromStart", "free_cuts", "depends on how the prefill was cut"),
    ("LastColumnTooFar", "metadata", "block_idx_last_scheduled_token of step 0 is"),
]


@pytest.mark.parametrize(("fault", "name", "says"), KINDS_OF_CHECK)
def test_a_script_fails_where_the_package_cannot_be_imported(tmp_path, fault, name, says):
    """One for each kind of comparison: status 1 and the wrong place."""
    case = next(c for f, c, *_ in EXPECTED if f == fault and c.property == name)
    done = alone(written(fault, case, tmp_path), tmp_path)

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("WRONG: ") and says in done.stdout


def test_the_same_script_holds_once_the_target_is_right(tmp_path):
    """Status 0 with the reference in the place of the faulty one."""
    path = written("DropsBoundary", EXPECTED[0][1], tmp_path)
    path.write_text(
        path.read_text().replace("targets.planted:DropsBoundary", "targets.reference:ReferenceTarget")
    )

    done = alone(path, tmp_path)

    assert "reference" in path.read_text() and (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "holds: every comparison is right\n"


def test_a_script_imports_torch_and_the_standard_library_only(tmp_path):
    """Nothing of the suite, no hypothesis, no numpy; and it says what it shows in its first lines."""
    text = written("DropsBoundary", EXPECTED[0][1], tmp_path).read_text()
    names = {n.split(".")[0] for n in standalone._imports(text)}

    assert names - set(sys.stdlib_module_names) == {"torch"}
    head = ast.get_docstring(ast.parse(text))
    assert "slot 1 (column 0) never was written" in head and f"Found with torch {torch.__version__}" in head


ADAPTER = '''
from gdn_apc.fuzz.targets.base import Target
from gdn_apc.fuzz.targets.reference import ReferenceTarget
import my_kernels

class Mine(ReferenceTarget):
    """Ten lines."""
    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, my_kernels.change(v), g, beta, ssm_state, batch)
'''


def test_an_adopters_adapter_travels_and_its_kernels_do_not(tmp_path, monkeypatch):
    """Mending the kernels beside the adapter mends the script's verdict."""
    (tmp_path / "my_adapter.py").write_text(ADAPTER)
    (tmp_path / "my_kernels.py").write_text("def change(v):\n    return v * 1.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from gdn_apc.fuzz import targets

    case = case_of("values", "delta", [[(0, 0, 3, (1, 2))]])
    found = report.triage(
        load_all()["values"], targets.load("my_adapter:Mine"), case, Violation("x"), reruns=1
    )
    path = tmp_path / "elsewhere" / "repro.py"
    assert standalone.save(found, path, {"target": "my_adapter:Mine"}) == ""

    assert alone(path, tmp_path / "elsewhere").returncode == 1
    (tmp_path / "my_kernels.py").write_text("def change(v):\n    return v\n")
    done = alone(path, tmp_path / "elsewhere")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("mutant", ["carry_not_persisted", "decode_writes_the_read_slot"])
def test_our_own_implementation_is_imported_and_nothing_else_of_ours(tmp_path, mutant):
    """A fault planted in the Triton kernels, through the interpreter: fuzz and oracle cannot be imported."""
    from gdn_apc.fuzz import targets

    name = f"gdn_apc.fuzz.mutants.targets:{mutant}"
    steps = (
        [[(0, 0, 2, (1,))], [(1, 2, 1, (1, 2))]] if mutant.startswith("decode") else [[(0, 0, 5, (1, 2, 3))]]
    )
    lengths = (2, (3, 0, 2)) if mutant.startswith("decode") else (5,)
    dtypes = Dtypes("fp32", "bf16", "fp32")
    case = case_of("values", "delta", steps, lengths, dtypes=dtypes)
    found = report.triage(load_all()["values"], targets.load(name), case, reruns=1)
    path = tmp_path / "repro.py"
    assert standalone.save(found, path, {"target": name}) == ""

    done = run(OURS.replace("SCRIPT", repr(str(path))), tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("WRONG: "), done.stderr


@pytest.mark.parametrize("level", ["conv", "delta", "core"])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_the_small_reference_agrees_with_the_oracle(level, state):
    """Outputs, states and windows, far below the tolerance."""
    case = case_of(
        "values", level, [[(0, 0, 3, (1, 2))], [(0, 3, 4, (1, 2, 3, 4))]], (7,), dtypes=Dtypes("fp32", state, "fp32"),
        sizes=dataclasses.replace(EXPECTED[0][1].sizes, H=1, HV=2), options=Options(conv_bias=True), inputs=Inputs(5, gates="mixed"),
    )  # fmt: skip
    world = World(ReferenceTarget(), case)
    layer = world.layer
    parts = {
        "weight": layer.conv_weight,
        "bias": layer.conv_bias,
        "A_log": layer.A_log,
        "dt_bias": layer.dt_bias,
    }
    plan = {
        "level": level,
        "sizes": dataclasses.asdict(case.sizes),
        "options": {"scale": layer.scale, "l2norm": True, "activation": "silu"},
        "dtypes": {"input": "fp32", "state": state, "conv": "fp32"},
    }
    for ran in world.run_all():
        for r in ran.rows:
            y, states, windows = _repro.reference(plan, parts, r.inputs, r.row.n, r.state, r.window)
            want = truth(world, r)
            assert float(oracle.ratios(want.o, y, want.o_tol, "fp32").max()) < 0.1
            for column, write in want.writes.items():
                if write.state is not None:
                    assert (
                        float(oracle.ratios(write.state, states[column], want.state_tol[column], state).max())
                        < 1
                    )
                if write.window is not None:
                    assert torch.equal(windows[column], write.window.double())


def test_tensors_and_sources_survive_packing():
    """All dtypes, an empty tensor, and text with quotes."""
    tensors = {
        "a": torch.randn(3, 2).bfloat16(),
        "b": torch.zeros(0, 4),
        "c": torch.tensor([1.0, -0.0, torch.nan]).half(),
    }
    sources = {"x/y.py": 'text = """quoted \\\\ and ü"""\n'}

    back, texts = _repro.unpack(standalone.pack(tensors, sources))

    assert texts == sources and back.keys() == tensors.keys()
    for name, t in tensors.items():
        assert (back[name].dtype, back[name].shape) == (t.dtype, t.shape)
        assert torch.equal(back[name].view(torch.uint8), t.view(torch.uint8))


def test_what_needs_the_suite_says_so(tmp_path):
    """The script that was there stays."""
    case = next(c for f, c, *_ in EXPECTED if f == "MultipliesTail")
    found = report.triage(
        load_all()["read_set"],
        ReferenceTarget(),
        case,
        Violation("x depends on the inputs of request 1"),
        reruns=1,
    )
    path = tmp_path / "repro.py"
    path.write_text("old")

    assert "spoilt" in standalone.save(
        found, path, {"target": "gdn_apc.fuzz.targets.reference:ReferenceTarget"}
    )
    assert path.read_text() == "old"


def test_a_script_that_does_not_show_the_failure_is_not_kept(tmp_path):
    """It is tried before it is trusted."""
    target, violation = failing("DropsBoundary", EXPECTED[0][1])
    found = report.triage(load_all()["values"], target, EXPECTED[0][1], violation, reruns=1)
    path = tmp_path / "repro.py"

    why = standalone.save(found, path, {"target": "gdn_apc.fuzz.targets.reference:ReferenceTarget"})

    assert why == "alone it does not show the failure (status 0): holds: every comparison is right"
    assert not list(tmp_path.iterdir())
