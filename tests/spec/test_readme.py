"""The map in spec/README.md: every action, invariant, function and property that it names exists, and none is left out.

The names of vLLM are looked up by ``tests/vllm/test_vllm_traces.py``, which has one.
"""

import re
from pathlib import Path

import pytest
from test_configurations import defined_in

import gdn_apc.fuzz
import gdn_apc.impl
from gdn_apc.spec import MODULES
from gdn_apc.spec.configurations import CONFIGURATIONS, PAIRS, SAFETY

README = MODULES.parent / "README.md"
FOLDERS = {"impl": Path(gdn_apc.impl.__file__).parent, "fuzz": Path(gdn_apc.fuzz.__file__).parent}


def rows():
    """Cells of the two tables: (design, in impl, in fuzz, in vLLM) and (invariant, in fuzz)."""
    text = README.read_text()
    part = text[text.index("## Where each thing is") : text.index("## Held to the code")]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"
    ]
    return [row for row in cells if row[0].startswith("`")]


def named(cell):
    """(file, name) of each "file: name, name" in backticks."""
    for file, names in re.findall(r"`([\w/]+\.py): ([^`]+)`", cell):
        yield from ((file, name.strip()) for name in names.split(","))


def defines(path, name):
    """Whether a file defines a function, class, attribute or property of a campaign by this name."""
    text = path.read_text() if path.exists() else ""
    return re.search(rf'(?m)^\s*(?:def|class) {name}\b|^\s*(?:self\.)?{name}\b\s*[:=]|name="{name}"', text)


@pytest.mark.parametrize(("folder", "column"), [("impl", 1), ("fuzz", 2)])
def test_what_the_map_names_is_there(folder, column):
    """Each function of impl, each function, invariant and property of fuzz."""
    cells = [
        row[1] if folder == "fuzz" and len(row) == 2 else row[column]
        for row in rows()
        if len(row) == 4 or column == 2
    ]
    found = [entry for cell in cells for entry in named(cell)]
    assert len(found) > 10
    assert [entry for entry in found if not defines(FOLDERS[folder] / entry[0], entry[1])] == []


def test_a_name_that_is_not_there_is_noticed():
    """The check above can fail: another file, another name, a name inside another."""
    assert defines(FOLDERS["impl"] / "ops.py", "gdn_core")
    for file, name in (
        ("ops.py", "gdn_cores"),
        ("op.py", "gdn_core"),
        ("ops.py", "core"),
        ("ops.py", "returns"),
    ):
        assert not defines(FOLDERS["impl"] / file, name)


def test_the_map_names_every_action_and_invariant():
    """Actions as the specifications have them; all that the map names is defined in the modules."""
    mapped = {name for row in rows() for name in re.findall(r"`(\w+)`", row[0])}
    defined = set().union(*(defined_in(job.module) for job in CONFIGURATIONS))
    assert mapped <= defined
    next_state = re.compile(
        r"(?ms)^(?:Next(?!Batch)\w*|Schedule\w*|PreemptFor)(?:\(\w\))? ==(.*?)(?=^\w|^\\\*|^-)"
    )
    text = "\n".join(
        (MODULES / f"{m}.tla").read_text()
        for m in ("Cache", "Pipeline", "Preempt", "Retention", "Speculation")
    )
    actions = {name for body in next_state.findall(text) for name in re.findall(r"\b[A-Z]\w+", body)}
    actions -= {"E", "Reqs", "Running", "Served"} | {
        n for n in actions if re.match(r"Next|Schedule|PreemptFor$", n)
    }
    assert {*PAIRS} <= actions
    assert {*actions, *SAFETY, "Progress", "CapHolds"} - mapped == set()
