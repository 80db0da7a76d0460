"""The tensors of a case: every request's own stream of tokens, and the layer's parameters, from one seed.

A case names a seed and a regime for each ingredient (``Inputs``), and this module makes the numbers. Two rules:

- Requests that share a prefix get equal tensors there by construction: a stream is copied from its parent up to
  ``shared`` and drawn on its own after it.
- A stream is drawn token by token, so a shorter request has the same tokens as the start of a longer one. A
  failing case therefore keeps failing for the same reason while its lengths shrink. (torch's generator lacks
  this: the values of ``randn`` depend on how many are asked for. Hence numpy's.)

Everything is drawn on the CPU and then moved, so a case means the same numbers on every device.
Imports numpy, torch and ``fuzz.case``, ``fuzz.targets.base``. Exercise it with ``pytest tests/fuzz/test_tensors.py``.
"""

from __future__ import annotations

import numpy as np
import torch

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.targets.base import Layer

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

STREAMS = {"conv": ("x",), "delta": ("q", "k", "v", "g", "beta"), "core": ("x", "a", "b")}
"""The tensors of a stream, by level, in the order in which the targets take them."""

GATES = ("mild", "near_one", "zero", "minus3", "minus5", "total", "mixed")
BETAS = ("uniform", "one", "zero", "mixed", "binary")
KEYS = ("normal", "repeated", "zero", "tiny", "onehot")
VALUES = ("normal", "spread", "large", "ints")

TOTAL_DECAY = -27.631021  # log(1e-12)
_MIXED_GATES = (0.0, -1e-3, -0.1, -3.0, -5.0, TOTAL_DECAY)
_TINY = 1e-3  # keys whose length the norm's epsilon changes by some percent
_UNIT = 0.98  # length of keys that the kernel does not normalise: rounding to bf16 must not lift it above 1
_SATURATED = 200.0  # sigmoid(±200) is 0 or 1 in fp32, exactly


def layer(case: Case, device: torch.device | str = "cpu") -> Layer:
    """The parameters of the case's layer (shapes and dtypes in ``fuzz/targets/base.py``)."""
    s, dtype = case.sizes, TORCH[case.dtypes.input]
    exact = case.inputs.values == "ints"
    weight, bias = _draw(case, "weight"), _draw(case, "bias")
    if exact:
        # Powers of two times integers: sums are exact in fp32 in any order.
        w = weight.choice([-4.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 4.0], (s.conv_dim, s.W))
        c = bias.integers(-8, 9, s.conv_dim).astype(float)
    else:
        w = weight.standard_normal((s.conv_dim, s.W)) / np.sqrt(s.W)
        c = 0.5 * bias.standard_normal(s.conv_dim)
    tensors = [
        _tensor(w, dtype),
        _tensor(_draw(case, "A_log").uniform(-0.5, 0.5, s.HV), torch.float32),
        _tensor(_draw(case, "dt_bias").uniform(-0.5, 0.5, s.HV), torch.float32),
        *([_tensor(c, dtype)] if case.options.conv_bias else []),
    ]
    w, A_log, dt_bias, *bias = _together(tensors, device)
    return Layer(
        H=s.H,
        HV=s.HV,
        K=s.K,
        V=s.V,
        conv_weight=w,
        conv_bias=bias[0] if bias else None,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=s.K**-0.5 if case.options.scale is None else case.options.scale,
        use_qk_l2norm=case.options.use_qk_l2norm,
        activation=case.options.activation,
    )


_RECENT: dict[tuple, list[dict[str, torch.Tensor]]] = {}


def streams(case: Case, device: torch.device | str = "cpu") -> list[dict[str, torch.Tensor]]:
    """Every request's stream: ``{name: [length, ...]}`` with the names of ``STREAMS[case.level]``.

    The last two cases' are kept, since a check runs one several times: they are to be read only. ``x: [L, D]``, ``q, k: [L, H, K]``, ``v: [L, HV, V]``, ``a, b: [L, HV]`` in the input dtype; ``g, beta: [L, HV]`` fp32.

    Raises:
        ValueError: the level has no streams, a parent comes after its child, or a prefix is longer than its parent.
    """
    if case.level not in STREAMS:
        raise ValueError(f"level: {case.level!r} has no tensors, expected one of {', '.join(STREAMS)}")
    key = case.level, case.sizes, case.dtypes, case.inputs, case.options, case.requests, str(device)
    if key in _RECENT:
        return [dict(own) for own in _RECENT[key]]
    made: list[dict[str, torch.Tensor]] = []
    for index, request in enumerate(case.requests):
        own = _stream(case, index, request.length)
        if request.parent is not None and request.shared:
            if not 0 <= request.parent < index:
                raise ValueError(
                    f"requests[{index}].parent: {request.parent}, expected an earlier request; order parents first"
                )
            parent = made[request.parent]
            for name, t in own.items():
                if request.shared > min(len(t), len(parent[name])):
                    raise ValueError(
                        f"requests[{index}].shared: {request.shared} tokens, but request {index} has {len(t)} and "
                        f"its parent {request.parent} has {len(parent[name])}; share at most that many"
                    )
                t[: request.shared] = parent[name][: request.shared]
        made.append(own)
    moved = iter(_together([t for own in made for t in own.values()], device))
    made = [{name: next(moved) for name in own} for own in made]
    while len(_RECENT) >= 2:
        _RECENT.pop(next(iter(_RECENT)))
    _RECENT[key] = made
    return [dict(own) for own in made]


def sent(t: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A CPU tensor on a device, without waiting for it: on a GPU that others use, a wait costs some two milliseconds."""
    return t if torch.device(device).type == "cpu" else t.pin_memory().to(device, non_blocking=True)


def _together(tensors: list[torch.Tensor], device: torch.device | str) -> list[torch.Tensor]:
    """The tensors on a device, in one copy: a GPU that others use too makes each copy wait."""
    if torch.device(device).type == "cpu":
        return tensors
    sizes = [-(-t.nbytes // 256) * 256 for t in tensors]
    packed = torch.full((sum(sizes),), 0xFF, dtype=torch.uint8)  # NaN in every dtype
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for start, t in zip(starts, tensors):
        packed[start : start + t.nbytes] = t.contiguous().view(-1).view(torch.uint8)
    packed = sent(packed, device)
    return [packed[a : a + t.nbytes].view(t.dtype).view(t.shape) for a, t in zip(starts, tensors)]


def _stream(case: Case, index: int, length: int) -> dict[str, torch.Tensor]:
    """A request's own tokens, as if it shared none."""
    s, dtype = case.sizes, TORCH[case.dtypes.input]
    if case.level == "conv":
        return {"x": _tensor(_values(case, index, (length, 1, s.conv_dim))[:, 0], dtype)}
    g, beta = _gates(case, index, length), _betas(case, index, length)
    if case.level == "core":
        return _core_stream(case, index, length, g, beta)
    k = _keys(case, index, (length, s.H, s.K))
    return {
        "q": _tensor(_queries(case, index, (length, s.H, s.K)), dtype),
        "k": _tensor(k, dtype),
        "v": _tensor(_values(case, index, (length, s.HV, s.V)), dtype),
        "g": _tensor(g, torch.float32),
        "beta": _tensor(beta, torch.float32),
    }


def _core_stream(
    case: Case, index: int, length: int, g: np.ndarray, beta: np.ndarray
) -> dict[str, torch.Tensor]:
    """Inputs before the convolution, and the a and b that make the gates wanted (as near as their dtype can)."""
    s, dtype = case.sizes, TORCH[case.dtypes.input]
    parameters = layer(case)
    A, dt = parameters.A_log.double().exp().numpy(), parameters.dt_bias.double().numpy()
    qk = _draw(case, "q", index).standard_normal((length, s.H * s.K))
    keys = _draw(case, "k", index).standard_normal((length, s.H * s.K))
    if case.inputs.keys == "zero":
        # A whole span, because a key mixes W inputs.
        keys *= (_spans(case, index, length, 2 * s.W) > 0)[:, None]
    elif case.inputs.keys == "repeated":
        keys = keys[_spans(case, index, length, 2 * s.W)] if length else keys
    elif case.inputs.keys == "tiny":
        keys *= _TINY
    values = _values(case, index, (length, s.HV, s.V)).reshape(length, s.HV * s.V)
    return {
        "x": _tensor(np.concatenate([qk, keys, values], axis=1), dtype),
        "a": _tensor(_inverse_softplus(-g / A) - dt, dtype),
        "b": _tensor(_inverse_sigmoid(beta), dtype),
    }


def _gates(case: Case, index: int, length: int) -> np.ndarray:
    """Log decays [L, HV], ≤ 0."""
    rng, shape, regime = _draw(case, "g", index), (length, case.sizes.HV), case.inputs.gates
    if regime == "mixed":
        return rng.choice(_MIXED_GATES, shape)
    if regime in ("near_one", "mild"):
        return -rng.random(shape) * {"near_one": 1e-3, "mild": 0.2}[regime]
    constants = {"zero": 0.0, "minus3": -3.0, "minus5": -5.0, "total": TOTAL_DECAY}
    return np.full(shape, constants[_known("gates", regime, GATES)])


def _betas(case: Case, index: int, length: int) -> np.ndarray:
    """Write strengths [L, HV] in 0..1."""
    rng, shape, regime = _draw(case, "beta", index), (length, case.sizes.HV), case.inputs.betas
    if regime == "binary":
        return rng.integers(0, 2, shape).astype(float)
    if regime == "mixed":
        return np.clip(rng.uniform(-0.5, 1.5, shape), 0.0, 1.0)
    if regime == "uniform":
        return rng.random(shape)
    return np.full(shape, {"one": 1.0, "zero": 0.0}[_known("betas", regime, BETAS)])


def _keys(case: Case, index: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Keys [L, H, K]. Kept to length < 1 where nobody normalises them, so that beta·‖k‖² ≤ 1 (section 4.6)."""
    length, H, K = shape
    rng, regime = _draw(case, "k", index), case.inputs.keys
    if _known("keys", regime, KEYS) == "onehot":
        return np.eye(K)[rng.integers(0, K, (length, H))]
    keys = rng.standard_normal(shape)
    if regime == "zero":
        keys *= (_draw(case, "zero", index).random((length, H)) < 0.5)[:, :, None]
    elif regime == "repeated" and length:
        keys = keys[_spans(case, index, length, 3)]
    elif regime == "tiny":
        keys *= _TINY
    if not case.options.use_qk_l2norm:
        norm = np.sqrt((keys**2).sum(-1, keepdims=True))
        keys = _UNIT * np.divide(keys, norm, out=np.zeros_like(keys), where=norm > 0)
    return keys


def _queries(case: Case, index: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Queries [L, H, K]; with one-hot keys, ±1 in one or two places, so that outputs stay small integers."""
    length, H, K = shape
    rng = _draw(case, "q", index)
    if case.inputs.keys != "onehot":
        # Length about 2 where nobody normalises: a large state must not overflow an fp16 output.
        return rng.standard_normal(shape) * (1.0 if case.options.use_qk_l2norm else 2.0 / np.sqrt(K))
    where, sign = (
        rng.integers(0, K, (length, H, 2)),
        _draw(case, "sign", index).choice([-1.0, 1.0], (length, H, 2)),
    )
    return (np.eye(K)[where] * sign[..., None]).sum(2)


def _values(case: Case, index: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Values [L, heads, width]."""
    rng, regime = _draw(case, "v", index), case.inputs.values
    if _known("values", regime, VALUES) == "ints":
        # Up to 5 bits and a sign: differences of two and sums of two stay exact in bf16's 8 bits.
        return rng.integers(-31, 32, shape).astype(float)
    scale = {"normal": 1.0, "spread": 1.0, "large": 64.0}[regime]
    if regime == "spread":
        scale = 2.0 ** _draw(case, "spread").integers(-8, 9, (1, shape[1], shape[2]))
    return rng.standard_normal(shape) * scale


def _spans(case: Case, index: int, length: int, longest: int) -> np.ndarray:
    """For every token one of its first three tokens' indices, constant over short spans."""
    rng = _draw(case, "spans", index)
    picks = rng.integers(0, 3, (length, 2))
    starts = (picks[:, 1] == 0) | (np.arange(length) % longest == 0)
    held = np.maximum.accumulate(np.where(starts, np.arange(length), 0)) if length else starts
    return np.minimum(picks[held, 0], held) if length else np.zeros(0, dtype=int)


def _inverse_softplus(y: np.ndarray) -> np.ndarray:
    """x with log(1 + exp(x)) = y; −200 for y = 0, where fp32's softplus is exactly 0."""
    with np.errstate(divide="ignore"):
        x = np.where(y > 20.0, y, np.log(np.expm1(np.minimum(y, 20.0))))
    return np.maximum(x, -_SATURATED)


def _inverse_sigmoid(y: np.ndarray) -> np.ndarray:
    """x with 1 / (1 + exp(−x)) = y, cut at ±200."""
    with np.errstate(divide="ignore"):
        x = np.log(y) - np.log1p(-y)
    return np.clip(x, -_SATURATED, _SATURATED)


def _draw(case: Case, ingredient: str, index: int = 0) -> np.random.Generator:
    """The random stream of one ingredient of one request: independent of all others, the same on every machine."""
    return np.random.Generator(np.random.PCG64([case.inputs.seed, index, *ingredient.encode()]))


def _known(name: str, regime: str, regimes: tuple[str, ...]) -> str:
    if regime not in regimes:
        raise ValueError(f"inputs.{name}: unknown regime {regime!r}, expected one of {', '.join(regimes)}")
    return regime


def _tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)).to(dtype)
