"""``repro.py`` for a failure: one script that needs torch and the target only, neither this package nor hypothesis.

It holds the case as plain data, the tensors and the adapter's sources as one compressed blob, and the text of ``_repro.py``: a
small reference, pages, comparisons. When the target is our own implementation, that is imported; nothing else of ours is.

    save(found, path, provenance)    # found: a Triage; tries the script before it trusts it

Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_standalone.py``.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import pprint
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import torch

from gdn_apc.fuzz.case import Case, Step
from gdn_apc.fuzz.geometry import read_slot, state_end
from gdn_apc.fuzz.targets import BUILTIN
from gdn_apc.fuzz.tensors import STREAMS, layer, streams
from gdn_apc.fuzz.triage import twins
from gdn_apc.fuzz.triage._repro import DTYPES
from gdn_apc.fuzz.triage.survey import Survey, edit_of

PARTS = "repro_parts"
MOST_TOLERANCES = 300_000
"""Elements whose tolerances a script carries; beyond, it compares the first wrong row only."""

TRIAL_SECONDS = 120.0


class NotStandalone(Exception):
    """The failure needs the suite: a life of the cache machine, or runs that are spoilt on purpose."""


def script(found: Any, provenance: dict[str, Any]) -> str:
    """The text of the script. Raises :class:`NotStandalone`."""
    case, where = found.located.case, found.located.where
    target_spec = BUILTIN.get(str(provenance.get("target")), str(provenance.get("target")))
    sources, adapter, paths = adapter_sources(target_spec)
    plan = _metadata(case) if case.level == "metadata" else _plan(found, case, where)
    tensors = plan.pop("tensors", {})
    plan = {
        "level": case.level,
        "sizes": {k: getattr(case.sizes, k) for k in ("H", "HV", "K", "V", "W", "B", "C")},
        "dtypes": {k: getattr(case.dtypes, k) for k in ("input", "state", "conv")},
        "options": {
            "scale": case.sizes.K**-0.5 if case.options.scale is None else case.options.scale,
            "l2norm": case.options.use_qk_l2norm,
            "activation": case.options.activation,
        },
        "streams": list(STREAMS.get(case.level, ())),
        "adapter": adapter,
        "paths": paths,
        "interpreted": f"{PARTS}/fuzz/interpreter/__init__.py" in sources,
        **plan,
    }
    runtime = (Path(__file__).parent / "_repro.py").read_text()
    runtime = runtime[runtime.index("import base64") :]
    runtime = re.sub(r"\nCASE: dict = .*\nBLOB = .*\n", "", runtime)
    data = pprint.pformat(plan, width=110, sort_dicts=False, compact=True)
    blob = pack(tensors, sources)
    lines = "\n".join(f'    "{blob[i : i + 110]}"' for i in range(0, len(blob), 110))
    body, _, tail = runtime.partition('if __name__ == "__main__":')
    head = f'"""{_header(found, provenance)}"""\n\nCASE = {data}\n\n'
    return f'{head}{body}BLOB = (\n{lines}\n)\n\nif __name__ == "__main__":{tail}'


def _header(found: Any, provenance: dict[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in sorted(provenance.get("versions", {}).items()))
    text = [
        *found.text(),
        "",
        f"Found with {versions}." if versions else "",
        "Run it with ``python``: it needs torch and the target (and, to interpret Triton kernels without a GPU, triton, numpy and",
        "ml_dtypes). It exits with 1 and names the wrong place while the target is wrong, with 0 once it is right.",
        "``steps`` below: one list a batch, one (request, n, m, block table) a row: tokens n to n + m of the request.",
    ]
    return "\n".join(text).replace("\\", "/").replace('"', "'") + "\n"


# ---- what to run and to compare --------------------------------------------------------------------------------------


def _plan(found: Any, case: Case, where: dict[str, Any]) -> dict[str, Any]:
    """Runs, comparisons and tensors of a case that drives kernels."""
    seen: Survey | None = found.located.survey
    if seen is None:
        raise NotStandalone("the case could not be surveyed")
    target = seen.world.target.inner if hasattr(seen.world.target, "inner") else seen.world.target
    run = _run(case)
    tensors = _inputs(case)
    plan: dict[str, Any] = {"runs": [run], "checks": [], "tensors": tensors}
    if seen.wrong and case.property not in ("batch_invariance", "program_order"):
        run["watch"] = True
        run |= _surroundings(case, seen)
        _add_edits(case, seen, run, tensors)
        plan["checks"] = _value_checks(seen, where, tensors)
    elif case.property in twins.BITWISE:
        plan["checks"] = _twin_checks(case, seen)
    elif case.property == "batch_invariance":
        from gdn_apc.fuzz.properties.invariance import VARIANTS

        other = VARIANTS[case.choice["variant"]](case, random.Random(case.choice["seed"]))
        tail = case.choice["tail"] if target.claims.packed_tail else 0
        plan["runs"].append({**_run(other), "tail": tail})
        why = f"the batch around it or where it lies ({case.choice['variant']})"
        plan["checks"] = _pairs_of_runs(case, other, why)
    elif case.property == "program_order":
        order = case.choice["order"] or "reversed"
        plan["runs"].append({**run, "order": order, "races": bool(case.choice["races"])})
        plan["checks"] = _pairs_of_runs(case, case, "the order of programs")
    elif case.property == "read_set":
        if "inputs of request" in found.message:
            raise NotStandalone("the inputs of one row are spoilt in the middle of the run")
        run |= {"hide": True, "watch": True, **_surroundings(case, seen)}
        plan["runs"].append({**_run(case), "hide": True, "fill": "zero"})
        plan["checks"] = _pairs_of_runs(case, case, "bytes that it must not read")
    else:
        raise NotStandalone(f"{case.property} has no comparison here")
    return plan


def _run(case: Case) -> dict[str, Any]:
    pool = case.pool
    return {
        "steps": _steps(case.steps),
        "pool": {"num_slots": pool.num_slots, "page_padding": pool.page_padding, "channel_major": pool.channel_major},
        "fill": "nan", "hide": False, "watch": False, "tail": 0, "widen": 0, "edits": {}, "order": None, "races": False,
    }  # fmt: skip


def _steps(steps: tuple[Step, ...]) -> list:
    return [[(r.request, r.n, r.m, list(r.table)) for r in step.rows] for step in steps]


def _surroundings(case: Case, seen: Survey) -> dict[str, Any]:
    how = seen.world.how
    return {"tail": how.tail, "widen": how.widen}


def _inputs(case: Case) -> dict[str, torch.Tensor]:
    tensors = {f"r{i}.{name}": t for i, s in enumerate(streams(case)) for name, t in s.items()}
    made = layer(case)
    named = {"weight": made.conv_weight, "bias": made.conv_bias, "A_log": made.A_log, "dt_bias": made.dt_bias}
    return tensors | {f"layer.{name}": t for name, t in named.items() if t is not None}


def _add_edits(case: Case, seen: Survey, run: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """What ``hit_is_used`` puts into a slot before a step: the bits that its row read."""
    if edit_of(case) is None:
        return
    reading = [(i, row) for i, step in enumerate(case.steps) for row in step.rows if row.m and row.n]
    at, changed = reading[case.choice["reader"] % len(reading)]
    view = next((v for v in seen.views if v.r.step == at and v.r.row is changed), None)
    if view is None:
        return
    slot, edits = read_slot(changed, case.sizes.B), []
    for part, t in (("ssm", view.r.state), ("conv", view.r.window)):
        if t is not None:
            tensors[f"edit.{part}"] = t
            edits.append((slot, part, f"edit.{part}"))
    run["edits"] = {str(at): edits}


def _value_checks(seen: Survey, where: dict[str, Any], tensors: dict[str, torch.Tensor]) -> list[tuple]:
    """Every row, or, in a large case, the first wrong one."""
    views = seen.views
    total = sum(v.out.numel() + sum(t.numel() for t in v.states.values()) for v in views)
    if total > MOST_TOLERANCES:
        views = [v for v in views if (v.r.step, v.r.index) == (where.get("step"), where.get("row"))]
    exact = seen.world.case.property == "index_movement"
    for v in views:
        key = f"tol.{v.r.step}.{v.r.index}"
        tensors[key] = _tolerance(v.want.o, v.want.o_tol, seen.world.case.dtypes.input, exact)
        for column in v.states:
            want, tol = v.want.writes[column].state, v.want.state_tol[column]
            tensors[f"{key}.{column}"] = _tolerance(want, tol, seen.world.case.dtypes.state, exact)
    return [("value", 0, v.r.step, v.r.index) for v in views]


def _tolerance(want: torch.Tensor, tol: torch.Tensor, dtype: str, exact: bool) -> torch.Tensor:
    """fp32, never below the tolerance itself. Exact values may differ by their rounding only."""
    from gdn_apc import oracle

    tol = (oracle.round_to(want, dtype) - want).abs() + 1e-30 if exact else tol.nan_to_num(torch.inf)
    return (tol * (1 + 2.0**-20)).float()


def _twin_checks(case: Case, seen: Survey) -> list[tuple]:
    rows = {id(r): (r.step, r.index) for ran in seen.ran for r in ran.rows}
    why = "whether its prefix was a hit" if case.property == "warm_equals_cold" else "how the prefill was cut"
    checks = []
    for longer, shorter in twins.pairs(case, seen.ran):
        a, b = rows[id(longer)], rows[id(shorter)]
        for column in sorted(set(longer.writes) & set(shorter.writes)):
            ends = [state_end(column, r.row.n, r.row.m, case.sizes.B) for r in (longer, shorter)]
            if ends[0] == ends[1]:
                for part in longer.writes[column]:
                    checks.append(("same", (0, *a, part, column), (0, *b, part, column), why))
        start = max(longer.row.n, shorter.row.n)
        checks.append(("same", (0, *a, "out", start), (0, *b, "out", start), why))
    return checks


def _pairs_of_runs(case: Case, other: Case, why: str) -> list[tuple]:
    """Each row of one run and the same row of the other, matched by request and order."""
    theirs = {key: at for key, at, _ in _live(other)}
    checks = []
    for key, (i, j), row in _live(case):
        there = theirs[key]
        checks.append(("same", (0, i, j, "out", row.n), (1, *there, "out", row.n), why))
        B = case.sizes.B
        for column in range(row.n // B, -(-(row.n + row.m) // B)):
            if row.table[column]:
                for part in {"conv": ("conv",), "delta": ("ssm",), "core": ("conv", "ssm")}[case.level]:
                    checks.append(("same", (0, i, j, part, column), (1, *there, part, column), why))
    return checks


def _live(case: Case) -> list[tuple[tuple[int, int], tuple[int, int], Any]]:
    found, count = [], {}
    for i, step in enumerate(case.steps):
        for j, row in enumerate(step.rows):
            if row.request is not None and row.m:
                count[row.request] = count.get(row.request, -1) + 1
                found.append(((row.request, count[row.request]), (i, j), row))
    return found


def _metadata(case: Case) -> dict[str, Any]:
    """Batches, and the expected value of every field that the oracle knows."""
    from gdn_apc import oracle

    fields = []
    for step in case.steps:
        wide = max([1, *(len(r.table) for r in step.rows)])
        rows = [(r.n, r.m, [*r.table, *[0] * (wide - len(r.table))]) for r in step.rows]
        want = oracle.block_indices(rows, case.sizes.B, case.sizes.C)
        want["seq_lens"] = [r.n + r.m for r in step.rows]
        if want["max_query_len"] <= 1:
            want = {k: v for k, v in want.items() if not k.startswith("chunk_")}
        fields.append({k: v for k, v in want.items() if k not in ("chunks", "write_columns")})
    return {"runs": [{"steps": _steps(case.steps)}], "checks": [], "fields": fields}


# ---- the blob --------------------------------------------------------------------------------------------------------


def pack(tensors: dict[str, torch.Tensor], sources: dict[str, str]) -> str:
    """Tensors and sources as printable text; ``_repro.unpack`` is its inverse."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    index, raw = {}, bytearray()
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        raw += bytes(-len(raw) % 8)
        index[name] = (names[t.dtype], list(t.shape), len(raw), t.numel())
        raw += t.view(torch.uint8).numpy().tobytes() if t.numel() else b""
    head = json.dumps({"tensors": index, "sources": sources}).encode()
    head += b" " * (-len(head) % 8)
    return (
        base64.b85encode(zlib.compress(len(head).to_bytes(8, "little") + head + bytes(raw), 9))
        .decode()
        .replace("\\", "\\\\")
    )


def adapter_sources(spec: str) -> tuple[dict[str, str], str, list[str]]:
    """The sources that a target's adapter needs, by path; its ``module:attribute`` among them; folders of an adopter's module.

    Everything of ours but ``impl`` moves into a package of another name, so that an installed copy is neither needed
    nor used. Raises :class:`NotStandalone` if the adapter has no source.
    """
    module, _, attribute = spec.partition(":")
    roots, paths, sources = ["gdn_apc.fuzz.targets.base"], [], {}
    if module.startswith("gdn_apc."):
        roots.append(module)
    else:
        file = _file(module)
        if file is None:
            raise NotStandalone(f"the source of {module} cannot be found")
        text = file.read_text()
        sources[f"{module.replace('.', '_')}_adapter.py"] = _renamed(text)
        roots += [n for n in _imports(text) if n.startswith("gdn_apc.fuzz")]
        paths.append(str(file.parent))
        module = f"{module.replace('.', '_')}_adapter"
    if _is_triton(spec):
        roots += [
            f"gdn_apc.fuzz.interpreter.{p.stem}"
            for p in sorted(_file("gdn_apc.fuzz.interpreter").parent.glob("_[a-z]*.py"))
        ]
    todo, seen = list(roots), set()
    while todo:
        name = todo.pop()
        file = None if name in seen or _is_impl(name) else _file(name)
        seen.add(name)
        if file is None:
            continue
        text = file.read_text()
        path = name.replace("gdn_apc", PARTS, 1).replace(".", "/")
        sources[f"{path}/__init__.py" if file.name == "__init__.py" else f"{path}.py"] = _renamed(text)
        todo += [n for n in _imports(text) if n.startswith("gdn_apc.")]
        todo += [name.rpartition(".")[0]] if name.count(".") > 1 else []
    return sources, f"{module.replace('gdn_apc.', PARTS + '.', 1)}:{attribute}", paths


def _is_impl(name: str) -> bool:
    return name.split(".")[:2] == ["gdn_apc", "impl"]


def _is_triton(spec: str) -> bool:
    """Whether the adapter's kernels are Triton's, so that a machine without a GPU needs the interpreter."""
    from gdn_apc.fuzz import targets

    try:
        return targets.load({v: k for k, v in BUILTIN.items()}.get(spec, spec)).runs_triton
    except targets.TargetUnavailable:
        return True


def _renamed(text: str) -> str:
    return (
        text.replace("gdn_apc.fuzz", f"{PARTS}.fuzz")
        .replace("gdn_apc.oracle", f"{PARTS}.oracle")
        .replace("from gdn_apc import oracle", f"from {PARTS} import oracle")
    )


def _imports(text: str) -> set[str]:
    """Every dotted name that a source imports, and each name taken from a package."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def _file(name: str) -> Path | None:
    """The source file of a module; None if the name is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


# ---- saving ----------------------------------------------------------------------------------------------------------


def save(found: Any, path: Path, provenance: dict[str, Any]) -> str:
    """Write the script to ``path`` if it shows the failure by itself; returns why it does not, or an empty string.

    Where it does not, whatever script is there stays (``RunFolder.save_repro`` writes one that needs the package).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = script(found, provenance)
    except NotStandalone as e:
        return str(e)
    except Exception as e:
        return f"writing it broke: {type(e).__name__}: {e}"
    trial = path.with_suffix(".trial")
    trial.write_text(text)
    try:
        done = subprocess.run(
            [sys.executable, str(trial)], capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        trial.unlink()
        return f"it took longer than {TRIAL_SECONDS:g} s"
    if done.returncode == 1 and "WRONG: " in done.stdout:
        trial.replace(path)
        return ""
    trial.unlink()
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["nothing was printed"]
    return f"alone it does not show the failure (status {done.returncode}): {last[0]}"
