"""What a peer is. Imports torch and ``fuzz.bench``. Exercise it with ``pytest tests/benchmarks/test_peers.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gdn_apc.fuzz.bench.check import Answer
from gdn_apc.fuzz.bench.inputs import Inputs
from gdn_apc.fuzz.bench.problems import Problem


@dataclass
class Run:
    """A prepared measurement: one call for each set of inputs, and the answer that a call's result stands for."""

    calls: list[Callable[[], object]]
    answer: Callable[[object], Answer]


class Peer:
    """Base of all adapters."""

    name = "?"
    ours = False
    exports = False
    """Whether it stores a state at every block; one that does not is measured once a shape, whatever the block."""
    captured = False
    """Whether prefills can be captured in a CUDA graph."""

    def version(self) -> str:
        """Of the package that is measured."""
        raise NotImplementedError

    def solves(self, problem: Problem, device: torch.device) -> bool:
        """Whether this peer has this operation, with these exports."""
        raise NotImplementedError

    def prepare(self, inputs: Inputs) -> Run:
        """Calls for every set of the inputs."""
        raise NotImplementedError
