"""A toy target and toy properties, to test campaigns without kernels.

Tests in the same process call :func:`install`. A subprocess loads this module as a pytest plugin (``PYTEST_PLUGINS``,
with this folder on ``PYTHONPATH``), and the variable ``GDN_TOYS`` names the properties.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from hypothesis import strategies as st

from gdn_apc.fuzz import ledger, properties
from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Row, Sizes, Step
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.targets.base import Claims, Target


class Toy(Target):
    """A target in plain Python: ``conv`` raises when it is asked for 7 tokens or more."""

    name = "toy"
    claims = Claims(input_dtypes=frozenset({"fp32"}), state_dtypes=frozenset({"fp32"}))

    def device(self) -> torch.device:
        return torch.device("cpu")

    def conv(self, layer, x, conv_state, batch):
        if len(x) >= 7:
            raise IndexError("block 7 is out of range")
        return x


TARGET = Toy()


def case_of(name: str, tokens: int, seed: int) -> Case:
    """One request, one step of ``tokens`` tokens."""
    return Case(
        property=name,
        level="delta",
        sizes=Sizes(H=1, HV=1, K=4, V=4, W=4, B=1 << 20, C=16),  # one block, whatever the length
        dtypes=Dtypes("fp32", "fp32", "fp32"),
        inputs=Inputs(seed=seed),
        requests=(Request(length=tokens),),
        steps=(Step((Row(0, 0, tokens, (1,)),)),),
        pool=Pool(num_slots=2),
    )


def _holds(target, case):
    return Checked(1, ratios={"toy": [0.5, 0.25]})


def _fails(target, case):
    if case.num_tokens >= 7:
        raise Violation(f"{case.num_tokens} tokens: block 3 is wrong", step=0, block=3)
    return Checked(1)


def _fails_slowly(target, case):
    time.sleep(0.05)
    return _fails(target, case)


def _target_raises(target, case):
    target.conv(None, torch.zeros(case.num_tokens), None, None)
    return Checked(1)


def _we_raise(target, case):
    return Checked(1 + case.num_tokens["no such key"])


def _interrupts(target, case):
    raise KeyboardInterrupt


def _segfaults(target, case):
    if case.num_tokens >= 7:
        os.kill(os.getpid(), signal.SIGSEGV)
    return Checked(1)


def _hangs(target, case):
    time.sleep(600)
    return Checked(1)


def _slow(target, case):
    time.sleep(0.05)
    return Checked(1)


def _compares_nothing(target, case):
    return Checked(0)


CHECKS = {
    "holds": _holds,
    "few": _holds,  # of which there are 40 cases, so that it ends by itself
    "fails": _fails,
    "fails-slowly": _fails_slowly,
    "target-raises": _target_raises,
    "we-raise": _we_raise,
    "interrupts": _interrupts,
    "segfaults": _segfaults,
    "hangs": _hangs,
    "slow": _slow,
    "compares-nothing": _compares_nothing,
    "strategy-raises": _holds,
}


def toy(name: str, largest: int = 10**6, floor: int = 20, check=None) -> Property:
    """The toy property called ``name``."""

    def strategy(target):
        seeds = st.just(0) if name == "few" else st.integers(0, 2**32)
        cases = st.builds(case_of, st.just(name), st.integers(1, 40 if name == "few" else largest), seeds)
        return cases.map(_raise_in_strategy) if name == "strategy-raises" else cases

    return Property(name, f"Toy: {name}.", "kernel", strategy, check or CHECKS[name], floor=floor)


def _raise_in_strategy(case):
    raise LookupError("no such size")


def install(names: list[str]) -> None:
    """Make these the only properties, and the ledger empty. The caller undoes it."""
    ledger.EVENTS = {}
    toys = {name: toy(name) for name in names}
    properties.load_all = lambda: toys


if "GDN_TOYS" in os.environ:
    install(os.environ["GDN_TOYS"].split(","))
