"""What every repro script has in common: a small reference, pages, and comparisons. Copied into each script as it is.

A script is this text, after the case as plain data (``CASE``) and one compressed blob of tensors and adapter sources
(``BLOB``); ``fuzz/triage/standalone.py`` writes it. So nothing here may import more than torch and the standard library.
Exercise it with ``pytest tests/fuzz/test_standalone.py``.
"""

import base64
import importlib
import json
import mmap
import sys
import tempfile
import zlib
from contextlib import nullcontext
from pathlib import Path

import torch

CASE: dict = {}  # a script has its own two instead
BLOB = ""

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int64": torch.int64,
}


class Wrong(Exception):
    """The target deviates; the message names the place."""


# ---- the small reference: float64, token by token ------------------------------------------------------------------


def delta_rule(q, k, v, g, beta, state, scale, l2norm, n, B, dtype):
    """q, k [m, H, K], v [m, HV, V], g, beta [m, HV], state [HV, V, K] or None → o [m, HV, V], {block: state}.

    S = exp(g) S;  S = S + beta (v - S k) k^T;  o = scale S q. At the end of a block the state is stored, rounded to the
    cache's dtype, and the row goes on from what it stored.
    """
    q, k, v, g, beta = (t.double() for t in (q, k, v, g, beta))
    if l2norm:
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(v.shape[1] // t.shape[1], dim=1) for t in (q, k))
    S = (
        torch.zeros(*v.shape[1:], q.shape[2], dtype=torch.float64)
        if state is None
        else state.double().clone()
    )
    out, blocks = [], {}
    for t in range(len(v)):
        S = S * torch.exp(g[t])[:, None, None]
        u = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
        S = S + u[:, :, None] * k[t][:, None, :]
        out.append(torch.einsum("hvk,hk->hv", S, q[t] * scale))
        if (n + t + 1) % B == 0 or t == len(v) - 1:
            blocks[(n + t) // B] = S
            S = S.to(DTYPES[dtype]).double()
    return torch.stack(out), blocks


def convolution(x, weight, bias, window, activation, n, B):
    """x [m, D], weight [D, W], window [W - 1, D] or None → y [m, D], {block: window}; a window is the last W - 1 inputs."""
    W, m = weight.shape[1], len(x)
    inputs = torch.cat([(torch.zeros(W - 1, x.shape[1]) if window is None else window).double(), x.double()])
    y = sum(weight[:, w].double() * inputs[w : w + m] for w in range(W))
    y = y if bias is None else y + bias.double()
    y = y * torch.sigmoid(y) if activation == "silu" else y
    ends = [t + 1 for t in range(m) if (n + t + 1) % B == 0 or t == m - 1]
    return y, {(n + t - 1) // B: inputs[t : t + W - 1] for t in ends}


def reference(case, layer, inputs, n, state, window):
    """Outputs, states and windows by block that a row must give, from the bits that it reads; None where there are none."""
    s, o, d = case["sizes"], case["options"], case["dtypes"]
    y, states, windows = None, {}, {}
    if "x" in inputs:
        y, windows = convolution(
            inputs["x"], layer["weight"], layer["bias"], window, o["activation"], n, s["B"]
        )
    if case["level"] == "core":
        parts = y.to(DTYPES[d["input"]]).split([s["H"] * s["K"], s["H"] * s["K"], s["HV"] * s["V"]], dim=-1)
        q, k, v = (p.unflatten(-1, (-1, w)) for p, w in zip(parts, (s["K"], s["K"], s["V"])))
        a = inputs["a"].double() + layer["dt_bias"].double()
        softplus = torch.where(a > 20, a, torch.log1p(torch.exp(a.clamp(max=20))))
        g, beta = -torch.exp(layer["A_log"].double()) * softplus, torch.sigmoid(inputs["b"].double())
    elif case["level"] == "delta":
        q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    if case["level"] != "conv":
        y, states = delta_rule(q, k, v, g, beta, state, o["scale"], o["l2norm"], n, s["B"], d["state"])
    return y, states, windows


# ---- pages: every slot's window and state in one buffer, NaN where nobody may read -----------------------------------


class Pages:
    """``conv`` [slots, W - 1, D] and ``ssm`` [slots, HV, V, K], strided views; ``bytes`` [slots, watched] of them."""

    def __init__(self, case, pool, device):
        s, d = case["sizes"], case["dtypes"]
        D, W = 2 * s["H"] * s["K"] + s["HV"] * s["V"], s["W"]
        conv_dtype, ssm_dtype = DTYPES[d["conv"]], DTYPES[d["state"]]
        conv_bytes, ssm_bytes = (
            (W - 1) * D * conv_dtype.itemsize,
            s["HV"] * s["V"] * s["K"] * ssm_dtype.itemsize,
        )
        ssm_start = -(-conv_bytes // 64) * 64
        page = -(-(ssm_start + ssm_bytes + pool["page_padding"]) // 64) * 64
        slots, zone = pool["num_slots"], 512
        buffer = self.allocate(2 * zone + slots * page, device)
        watched = min(page, ssm_start + ssm_bytes + 4096)
        self.bytes = buffer.as_strided((slots, watched), (page, 1), zone)
        self.spans = {"conv": (0, conv_bytes), "ssm": (ssm_start, ssm_start + ssm_bytes)}
        window = (1, W - 1) if pool["channel_major"] else (D, 1)
        self.conv = buffer.view(conv_dtype).as_strided(
            (slots, W - 1, D), (page // conv_dtype.itemsize, *window), zone // conv_dtype.itemsize
        )
        self.ssm = buffer.view(ssm_dtype).as_strided(
            (slots, s["HV"], s["V"], s["K"]),
            (page // ssm_dtype.itemsize, s["V"] * s["K"], s["K"], 1),
            (zone + ssm_start) // ssm_dtype.itemsize,
        )

    @staticmethod
    def allocate(size, device):
        """A large pool is address space only: pages that nobody touches cost no memory."""
        if device.type != "cpu" or size < 1 << 30:
            return torch.empty(size, dtype=torch.uint8, device=device)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)

    def fill(self, how, keep=()):
        """NaN in every dtype with a payload that depends on the place, or zeros; not in the (slot, part) of ``keep``."""
        words = torch.arange(self.bytes.numel() // 2 + 1, device=self.bytes.device)
        nan = (0x7FC0 | ((words * 2654435761 >> 9) & 0x3F)).to(torch.int16).view(torch.uint8)
        new = (
            nan[: self.bytes.numel()].view(self.bytes.shape) if how == "nan" else torch.zeros_like(self.bytes)
        )
        kept = [(self.part(*k), self.part(*k).clone()) for k in keep]
        self.bytes.copy_(new)
        for view, old in kept:
            view.copy_(old)

    def part(self, slot, part):
        """A view of the bytes of one part of a slot."""
        lo, hi = self.spans[part]
        return self.bytes[slot, lo:hi]


# ---- running a schedule ----------------------------------------------------------------------------------------------


def columns(n, m, B):
    """The blocks that a row of m tokens after n writes."""
    return range(n // B, -(-(n + m) // B)) if m else range(0)


class Run:
    """A schedule on the target. ``rows[step, row]``: what the row read, its inputs, outputs, and blocks as it left them."""

    def __init__(self, case, run, target, api, tensors):
        self.case, self.run, self.target, self.api, self.tensors = case, run, target, api, tensors
        self.device, self.rows = target.device(), {}
        self.parts = {"conv": ("conv",), "delta": ("ssm",), "core": ("conv", "ssm")}[case["level"]]
        self.pages = Pages(case, run["pool"], self.device)
        self.pages.fill(run["fill"])
        s, o = case["sizes"], case["options"]
        names = ("weight", "bias", "A_log", "dt_bias")
        self.layer = {name: tensors.get(f"layer.{name}") for name in names}
        on = {name: t if t is None else t.to(self.device) for name, t in self.layer.items()}
        self.api_layer = api.Layer(
            H=s["H"], HV=s["HV"], K=s["K"], V=s["V"], conv_weight=on["weight"], conv_bias=on["bias"], A_log=on["A_log"],
            dt_bias=on["dt_bias"], scale=o["scale"], use_qk_l2norm=o["l2norm"], activation=o["activation"],
        )  # fmt: skip
        for i, rows in enumerate(run["steps"]):
            self.step(i, rows)

    def step(self, i, rows):
        """One batch: remember what its rows read, call the target, keep what it left; look at all other bytes if asked."""
        B, names = self.case["sizes"]["B"], self.case["streams"]
        for slot, part, name in self.run["edits"].get(str(i), ()):
            page = getattr(self.pages, part)
            page[slot] = self.tensors[name].to(page)
        live = [(j, *row) for j, row in enumerate(rows) if row[0] is not None and row[2]]
        read = {j: table[-(-n // B) - 1] for j, _, n, _, table in live if n}
        before = self.pages.bytes.clone()
        if self.run["hide"]:
            self.pages.fill(self.run["fill"], [(slot, part) for slot in read.values() for part in self.parts])
        inputs = {j: {k: self.tensors[f"r{r}.{k}"][n : n + m] for k in names} for j, r, n, m, _ in live}
        states = {
            j: {p: getattr(self.pages, p)[slot].clone().cpu() for p in self.parts} for j, slot in read.items()
        }
        changed = self.pages.bytes.clone()
        out = self.call(rows, [inputs[j] for j, *_ in live])
        at, allowed = 0, []
        for j, request, n, m, table in live:
            writes = {c: table[c] for c in columns(n, m, B) if table[c]}
            allowed += [(slot, part) for slot in writes.values() for part in self.parts]
            left = {
                c: {p: getattr(self.pages, p)[slot].clone().cpu() for p in self.parts}
                for c, slot in writes.items()
            }
            self.rows[i, j] = (
                request,
                n,
                m,
                table,
                inputs[j],
                states.get(j, {}),
                out[at : at + m].cpu(),
                left,
            )
            at += m
        if self.run["watch"]:
            self.only(i, changed, allowed)
        if self.run["hide"]:
            kept = [(self.pages.part(*k), self.pages.part(*k).clone()) for k in allowed]
            self.pages.bytes.copy_(before)
            for view, new in kept:
                view.copy_(new)

    def call(self, rows, inputs):
        """The target's outputs for a batch."""
        s, case = self.case["sizes"], self.case
        width = max([1, *(len(row[3]) for row in rows)]) + self.run["widen"]
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + row[2])

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=self.device)

        batch = self.api.Batch(
            seq_lens=ints([n + m for _, n, m, _ in rows]), query_start_loc=ints(starts),
            block_table=ints([list(t) + [0] * (width - len(t)) for *_, t in rows]).view(-1, width),
            block_size=s["B"], chunk_size=s["C"], max_query_len=max((m for _, _, m, _ in rows), default=0),
        )  # fmt: skip
        packed = []
        for name in case["streams"]:
            like = self.tensors[f"r0.{name}"]
            tail = like.new_full(
                (self.run["tail"], *like.shape[1:]), torch.nan if self.run["fill"] == "nan" else 0.0
            )
            packed.append(torch.cat([like[:0], *(x[name] for x in inputs), tail]).to(self.device))
        states = [getattr(self.pages, part) for part in self.parts]
        return getattr(self.target, case["level"])(self.api_layer, *packed, *states, batch)

    def only(self, i, before, allowed):
        """Nothing but the blocks that the batch's rows write may change."""
        differs = self.pages.bytes != before
        for slot, part in [
            *allowed,
            *([] if self.target.claims.skips_null else [(0, p) for p in self.parts]),
        ]:
            lo, hi = self.pages.spans[part]
            differs[slot, lo:hi] = False
        if differs.any():
            slot, offset = (int(x) for x in differs.nonzero()[0])
            part = next((p for p, (lo, hi) in self.pages.spans.items() if lo <= offset < hi), "padding")
            raise Wrong(
                f"step {i} changed slot {slot}, {part}, byte {offset}; it may write {sorted(set(allowed))}"
            )


# ---- comparing -------------------------------------------------------------------------------------------------------


def check_value(run, step, row, tensors):
    """A row against the reference, from the bits that it read."""
    request, n, _, table, inputs, read, out, left = run.rows[step, row]
    y, states, windows = reference(run.case, run.layer, inputs, n, read.get("ssm"), read.get("conv"))
    where = f"step {step}, row {row}, request {request}"
    for column, parts in left.items():
        place = f"{where}, column {column}, slot {table[column]}"
        if "conv" in parts:
            within(parts["conv"], windows[column], None, f"the window ({place})", ("input", "channel"), 0)
        if "ssm" in parts:
            tol = tensors[f"tol.{step}.{row}.{column}"]
            within(parts["ssm"], states[column], tol, f"the state ({place})", ("head", "value", "key"), 0)
    axes = ("position", "channel") if run.case["level"] == "conv" else ("position", "head", "value")
    within(out, y, tensors[f"tol.{step}.{row}"], f"the output ({where})", axes, n)


def within(actual, want, tol, what, axes, first):
    """Every element is within its tolerance; without one, its bits are those of the wanted value."""
    if tol is None:
        wrong = bits(actual) != bits(want.to(actual.dtype))
    else:
        error = (actual.double() - want).abs()
        wrong = ~((error <= tol.double()) | (actual.double() == want))
        wrong &= ~(
            actual.isinf()
            & (actual.sign() == want.sign())
            & (want.abs() + tol > torch.finfo(actual.dtype).max)
        )
        wrong &= ~want.isnan()
    if wrong.any():
        at = [int(i) for i in wrong.nonzero()[0]]
        place = ", ".join(f"{a} {i + first if a == 'position' else i}" for a, i in zip(axes, at))
        raise Wrong(
            f"{what} is wrong at {place}: expected {float(want[tuple(at)]):.9g}, actual {float(actual[tuple(at)]):.9g}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements are wrong"
        )


def bits(t):
    """A tensor's bits as integers."""
    return t.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def piece(runs, which):
    """A row's bits from one position on: outputs, or what it left in a column."""
    run, step, row, what, start = which
    _, n, _, _, _, _, out, left = runs[run].rows[step, row]
    return out[start - n :] if what == "out" else left[int(start)][what]


def check_same(runs, one, other, why):
    """Two rows have the same bits."""
    a, b = piece(runs, one), piece(runs, other)
    length = min(len(a), len(b))
    differs = (bits(a[:length]) != bits(b[:length])).nonzero()
    if len(differs):
        at = tuple(int(i) for i in differs[0])
        what = (
            f"the output from position {one[4]}"
            if one[3] == "out"
            else f"the {one[3]} part of column {one[4]}"
        )
        raise Wrong(
            f"{what} depends on {why}: {float(a[at]):.9g} in run {one[0]}, step {one[1]}, row {one[2]} and {float(b[at]):.9g} "
            f"in run {other[0]}, step {other[1]}, row {other[2]}, at {list(at)}; {len(differs)} elements differ"
        )


def check_fields(case, target, api):
    """The target's block indices against the expected ones."""
    B, C = case["sizes"]["B"], case["sizes"]["C"]
    for i, (rows, want) in enumerate(zip(case["runs"][0]["steps"], case["fields"])):
        width = max([1, *(len(row[3]) for row in rows)])
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + row[2])
        as_int = lambda values: torch.tensor(values, dtype=torch.int32, device=target.device())  # noqa: E731
        batch = api.Batch(
            as_int([n + m for _, n, m, _ in rows]), as_int(starts),
            as_int([list(t) + [0] * (width - len(t)) for *_, t in rows]).view(-1, width),
            B, C, max((m for _, _, m, _ in rows), default=0),
        )  # fmt: skip
        found = target.metadata(batch)
        for name, expected in want.items():
            got = found.get(name)
            got = got.tolist() if isinstance(got, torch.Tensor) else got
            if got is None and expected is not None and name.startswith("chunk_"):
                continue
            if name == "chunk_row" and isinstance(got, list):
                expected = expected + [-1] * (len(got) - len(expected))
            if got != expected:
                raise Wrong(
                    f"{name} of step {i} is {got}, expected {expected}, for the rows (request, n, m, table) {rows}"
                )


# ---- the target ------------------------------------------------------------------------------------------------------


def unpack(blob):
    """Tensors by name, and the sources of the adapter by path."""
    data = zlib.decompress(base64.b85decode(blob))
    size = int.from_bytes(data[:8], "little")
    index, raw, tensors = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :]), {}
    for name, (dtype, shape, start, length) in index["tensors"].items():
        flat = (
            torch.frombuffer(raw, dtype=DTYPES[dtype], offset=start, count=length)
            if length
            else torch.empty(0, dtype=DTYPES[dtype])
        )
        tensors[name] = flat.view(shape).clone()
    return tensors, index["sources"]


def load(case, sources):
    """The adapter, from its sources in a temporary folder, and the classes of a batch and a layer that it expects."""
    folder = Path(tempfile.mkdtemp(prefix="repro-"))
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path[:0] = [str(folder), *case["paths"]]
    interpreted = case["interpreted"] and not torch.cuda.is_available()
    interpreter = importlib.import_module("repro_parts.fuzz.interpreter") if interpreted else None
    if interpreter:
        interpreter.activate()
    module, _, attribute = case["adapter"].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    target = found() if isinstance(found, type) or not hasattr(found, "claims") else found
    return target, importlib.import_module("repro_parts.fuzz.targets.base"), interpreter


def main():
    """Exit status 0: everything holds. 1: the target is wrong, the place printed."""
    torch.set_num_threads(1)
    tensors, sources = unpack(BLOB)
    target, api, interpreter = load(CASE, sources)
    try:
        if CASE["level"] == "metadata":
            check_fields(CASE, target, api)
            return 0
        runs = []
        for run in CASE["runs"]:
            around = (
                interpreter.program_order(run["order"])
                if interpreter and run["order"] is not None
                else nullcontext()
            )
            with around, interpreter.races() if interpreter and run["races"] else nullcontext():
                runs.append(Run(CASE, run, target, api, tensors))
        for kind, *what in CASE["checks"]:
            if kind == "value":
                check_value(runs[what[0]], what[1], what[2], tensors)
            else:
                check_same(runs, *what)
    except Wrong as e:
        print(f"WRONG: {e}")
        return 1
    except Exception as e:
        print(f"WRONG: the target raised {type(e).__name__}: {e}")
        raise SystemExit(1) from e
    print("holds: every comparison is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
