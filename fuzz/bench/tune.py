"""Finds launches: sweeps a kernel's tiles, warps and stages over a shape class, right answers only, and prints the rows.

    python -m gdn_apc.fuzz.bench.tune scan                                 at 16/32 1x8192
    python -m gdn_apc.fuzz.bench.tune scan prepare --shape 4x8/1x8192 --state bf16
    python -m gdn_apc.fuzz.bench.tune scan --values tile=16,32,64 num_warps=2,4 num_stages=1,2,3 --jobs 12

A candidate is measured inside the operation that it is part of, with ``impl.configs.override``. One whose answers differ
from the oracle's beyond ``check.LIMIT`` is rejected, whatever its time; ``bits`` says whether its results are those of
the table's launch, bit for bit, because only such launches may share a shape class (DESIGN.md, section 4.1). What wins is
printed as it goes into ``impl/configs.py``; nobody writes that file but a person.

``--jobs`` compiles ahead in so many processes, into Triton's cache on disk. Without a GPU, the interpreter checks and times
nothing worth knowing: it shows that the script works. Imports torch and ``fuzz.bench``. Exercise it with
``pytest tests/benchmarks/test_tune.py``.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace

import torch

from gdn_apc.fuzz.bench.problems import IN_PLACE, ONLY_THE_LAST, Problem

VALUES = {"tile": (8, 16, 32, 64, 128, 256), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4)}
"""What is tried unless ``--values`` says otherwise; a field that is not here keeps its value."""

MEASURED_BY = {
    "conv": "conv",
    "gates": "gates",
    "conv_one_token": "decode",
    "recurrent": "decode",
    "decode": "decode",
}
"""Kernel → the operation that it is measured in; any other kernel is part of ``delta``."""


@dataclass
class Outcome:
    """One candidate: its time, or why it has none."""

    launch: object
    ms: float | None = None
    error: float | None = None
    same_bits: bool | None = None
    why: str = ""

    @property
    def line(self) -> str:
        """For the table."""
        if self.ms is None:
            return f"   rejected  {self.launch}  {self.why}"
        bits = "same bits" if self.same_bits else "OTHER bits"
        return f"{self.ms:8.4f} ms  {self.launch}  error {self.error:.2e}, {bits}"


def problem(kernel: str, shape: str, state: str, dtype: str, block: int, size: int | None = None) -> Problem:
    """The problem that a kernel is tuned on: ``16x32/1x8192`` is heads and rows. Raises ``ValueError`` for another form."""
    try:
        heads, rows = shape.split("/")
        H, HV = map(int, heads.split("x"))
        count, m = map(int, rows.split("x"))
    except ValueError:
        raise ValueError(f"shape: {shape!r} is not heads and rows, like 16x32/1x8192") from None
    op = MEASURED_BY.get(kernel, "delta")
    sizes = dict(K=size, V=size) if size else {}
    if op == "decode":
        return Problem(
            op, H, HV, (1,) * count, 1000, block=1024, dtype=dtype, state=state, variant=IN_PLACE, **sizes
        )
    return Problem(
        op,
        H,
        HV,
        (m,) * count,
        block=None if block >= ONLY_THE_LAST else block,
        dtype=dtype,
        state=state,
        **sizes,
    )


def candidates(base: object, values: dict[str, tuple[int, ...]]) -> list[object]:
    """The table's launch first, then every other combination of values of its fields."""
    unknown = values.keys() - {f.name for f in fields(base)}
    if unknown:
        raise ValueError(
            f"values: a launch has no {', '.join(sorted(unknown))}; it has {', '.join(f.name for f in fields(base))}"
        )
    names = list(values)
    made = [replace(base, **dict(zip(names, chosen))) for chosen in itertools.product(*values.values())]
    return [base] + [launch for launch in made if launch != base]


def sweep(
    kernel: str, p: Problem, launches: list[object], device: torch.device, seed: int = 0
) -> Iterator[Outcome]:
    """Each candidate's outcome; the first one is the table's, whose bits the others are compared with."""
    from gdn_apc.fuzz.bench import check as checking
    from gdn_apc.fuzz.bench.inputs import make
    from gdn_apc.fuzz.bench.peers.native import Native
    from gdn_apc.fuzz.bench.timing import measure
    from gdn_apc.impl import configs

    inputs = make(p, device, seed)
    before = inputs.states.clone(), inputs.windows.clone()
    with torch.no_grad():
        want, bits = checking.expected(inputs), None
        for launch in launches:
            found = Outcome(launch)
            try:
                with configs.override(**{kernel: launch}):
                    run = Native().prepare(inputs)
                    result = run.calls[0]()
                    found.error = checking.check(inputs, want, run.answer(result))
                    now = [
                        t.clone()
                        for t in (*(result if isinstance(result, tuple) else (result,)), *_pools(inputs))
                    ]
                    bits = bits or now
                    found.same_bits = all(torch.equal(_integers(a), _integers(b)) for a, b in zip(bits, now))
                    found.ms = measure(run.calls, device, budget_ms=30).ms
            except checking.Wrong as e:
                found.why = str(e)
            except Exception as e:  # too much shared memory, too few columns for so many warps: not a launch
                found.why = f"{type(e).__name__}: {str(e).strip().splitlines()[-1] if str(e).strip() else ''}"
            inputs.states.copy_(before[0])
            inputs.windows.copy_(before[1])
            yield found


def _pools(inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """What the first set's slots hold."""
    slots = inputs.sets[0].table.flatten().long()
    return tuple(
        pool[slots] if pool.shape[0] > int(slots.max()) else pool[:1]
        for pool in (inputs.states, inputs.windows)
    )


def _integers(t: torch.Tensor) -> torch.Tensor:
    """The bits: equal NaNs are equal."""
    return t.contiguous().view(torch.int16 if t.element_size() == 2 else torch.int32)


def _compile(kernel: str, p: Problem, launches: list[object]) -> None:
    """In a child: one small call of each candidate, for Triton's cache on disk."""
    from gdn_apc.fuzz.bench.inputs import make
    from gdn_apc.fuzz.bench.peers.native import Native
    from gdn_apc.impl import configs

    device = torch.device("cuda")
    short = replace(p, lengths=tuple(min(m, 256) for m in p.lengths[:1])) if p.op != "decode" else p
    inputs = make(short, device, sets=1)
    for launch in launches:
        try:
            with torch.no_grad(), configs.override(**{kernel: launch}):
                Native().prepare(inputs).calls[0]()
        except Exception:  # seen again, and reported, by the parent
            continue


def compile_ahead(kernel: str, p: Problem, launches: list[object], jobs: int) -> None:
    """All candidates, shared out over ``jobs`` processes."""
    shares = [launches[i::jobs] for i in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, itertools.repeat(kernel), itertools.repeat(p), shares))


def parse_values(given: list[str]) -> dict[str, tuple[int, ...]]:
    """``["tile=16,32"]`` → ``{"tile": (16, 32)}``. Raises ``ValueError`` for another form."""
    found = {}
    for text in given:
        name, equals, numbers = text.partition("=")
        if not equals or not all(n.strip().isdigit() for n in numbers.split(",")):
            raise ValueError(f"values: {text!r} is not a field and numbers, like tile=16,32,64")
        found[name] = tuple(int(n) for n in numbers.split(","))
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, or 1 if the table's own launch was rejected."""
    parser = argparse.ArgumentParser(
        prog="python -m gdn_apc.fuzz.bench.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kernels", nargs="+", metavar="KERNEL", help="fields of impl.configs.Config")
    add("--shape", default="16x32/1x8192", metavar="HxHV/NxM", help="heads and rows (default: 16x32/1x8192)")
    add("--size", type=int, metavar="K", help="K = V (default: 128)")
    add("--block", type=int, default=1024, help="tokens between two stored states (default: 1024)")
    add("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    add("--state", default="fp32", choices=("bf16", "fp16", "fp32"))
    add("--values", nargs="+", default=[], metavar="FIELD=A,B", help="what to try (default: all of VALUES)")
    add("--jobs", type=int, default=0, metavar="N", help="processes that compile ahead (needs a GPU)")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        from gdn_apc.fuzz import interpreter

        interpreter.activate()
    from gdn_apc.fuzz.bench.inputs import DTYPES
    from gdn_apc.impl.configs import Config, architecture, config

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    status = 0
    try:
        values = parse_values(given.values)
        for kernel in given.kernels:
            if kernel not in Config.__dataclass_fields__:
                raise ValueError(
                    f"kernel: {kernel!r} is not known, expected some of {', '.join(Config.__dataclass_fields__)}"
                )
            p = problem(kernel, given.shape, given.state, given.dtype, given.block, given.size)
            base = getattr(config(p.HV, p.V, DTYPES[p.dtype], architecture(device)), kernel)
            known = {f.name for f in fields(base)}
            launches = candidates(base, values or {k: v for k, v in VALUES.items() if k in known})
            status |= _tune(kernel, p, launches, device, given.jobs)
    except ValueError as e:
        parser.error(str(e))
    return status


def _tune(kernel: str, p: Problem, launches: list[object], device: torch.device, jobs: int) -> int:
    print(f"{kernel}: {len(launches)} launches on {p.name}, the first is the table's", flush=True)
    if jobs and device.type == "cuda":
        compile_ahead(kernel, p, launches, jobs)
    found = []
    for outcome in sweep(kernel, p, launches, device):
        print(outcome.line, flush=True)
        found.append(outcome)
    right = sorted((o for o in found if o.ms is not None), key=lambda o: o.ms)
    print(f"\n{kernel}: the five fastest of {len(right)} right ones, of {len(found)}")
    for outcome in right[:5]:
        print(
            f"    {kernel}={outcome.launch},  # {outcome.ms:.4f} ms, {p.name}, {'same' if outcome.same_bits else 'other'} bits"
        )
    if found[0].ms is not None:
        print(f"    the table's: {found[0].ms:.4f} ms")
    return int(found[0].ms is None)


if __name__ == "__main__":
    raise SystemExit(main())
