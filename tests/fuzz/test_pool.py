"""The pages of a pool: where the views lie, that poison is poison, and that every write is found.

``pytest tests/fuzz/test_pool.py``
"""

import pytest
import torch

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Sizes
from gdn_apc.fuzz.pool import RED_ZONE, Change, Pages, bits, fingerprint
from gdn_apc.fuzz.tensors import TORCH


def pages(input="bf16", state="fp32", conv=None, padding=0, channel_major=False, slots=4, W=4):
    case = Case(
        property="values",
        level="core",
        sizes=Sizes(H=1, HV=3, K=8, V=8, W=W, B=4, C=16),
        dtypes=Dtypes(input, state, conv or input),
        inputs=Inputs(0),
        requests=(),
        steps=(),
        pool=Pool(slots, padding, channel_major),
    )
    return Pages(case)


LAYOUTS = [
    dict(input=i, state=s, conv=c, padding=p, channel_major=m)
    for i in ("bf16", "fp16", "fp32")
    for s in ("bf16", "fp16", "fp32")
    for c, p, m in ((None, 0, False), ("fp32", 64, True), (None, 20, True), ("fp32", 3, False))
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_have_the_contracts_shapes_and_do_not_overlap(layout):
    """Writing distinct numbers through both views and reading them back finds every one."""
    p = pages(**layout)
    assert p.conv.shape == (4, 3, 40) and p.conv.dtype == TORCH[layout["conv"] or layout["input"]]
    assert p.ssm.shape == (4, 3, 8, 8) and p.ssm.dtype == TORCH[layout["state"]]
    conv = (torch.arange(p.conv.numel()) % 200).view(p.conv.shape).to(p.conv.dtype)
    ssm = (torch.arange(p.ssm.numel()) % 251).view(p.ssm.shape).to(p.ssm.dtype)

    p.conv.copy_(conv)
    p.ssm.copy_(ssm)

    assert torch.equal(p.conv, conv) and torch.equal(p.ssm, ssm)
    assert p.conv.stride(2 if not layout["channel_major"] else 1) == 1
    for view in (p.conv, p.ssm):
        assert view.data_ptr() % 16 == 0 and view.stride(0) % 16 == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_poison_is_nan_everywhere_in_every_dtype(layout):
    """Nothing that must not be read is a number, whatever dtype reads it."""
    p = pages(**layout)

    assert p.conv.isnan().all() and p.ssm.isnan().all()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert p._buffer[:RED_ZONE].view(dtype).isnan().all()
        assert p.part(2, "ssm").contiguous().view(dtype).isnan().all()


def test_poison_differs_from_place_to_place():
    """Copying poison from one slot to another changes bytes."""
    p = pages()
    before = p.snapshot()

    p.ssm[2] = p.ssm[3]

    assert p.first_change(before, []) is not None


@pytest.mark.parametrize(
    "write, want",
    [
        (lambda p: p.ssm[2, 0, 0, 1].fill_(1.0), Change(2, "ssm", 4)),
        (lambda p: p.conv[3, 0, 0].fill_(1.0), Change(3, "conv", 0)),
        (lambda p: p.conv[0, 2, 39].fill_(1.0), Change(0, "conv", (2 * 40 + 39) * 2)),
        (lambda p: p.part(1, "padding")[5].zero_(), Change(1, "padding", 5)),
        (lambda p: p.part(1, "gap")[15].zero_(), Change(1, "gap", 15)),
        (lambda p: p._buffer[RED_ZONE - 1].zero_(), Change(None, "red zone before", RED_ZONE - 1)),
        (lambda p: p._buffer[-RED_ZONE].zero_(), Change(None, "red zone after", 0)),
    ],
)
def test_every_stray_write_is_found_and_named(write, want):
    """The first changed byte is reported by slot, part and offset; a byte that was written is never lost."""
    p = pages(padding=8)
    before = p.snapshot()
    assert p.first_change(before, []) is None

    write(p)
    found = p.first_change(before, [(1, "conv"), (1, "ssm")])

    assert (found.slot, found.part) == (want.slot, want.part)
    assert want.offset <= found.offset < want.offset + 4


def test_allowed_parts_may_change_and_only_they():
    """A slot's window is allowed without its state."""
    p = pages()
    before = p.snapshot()
    p.conv[1] = 1.0

    assert p.first_change(before, [(1, "conv")]) is None
    assert p.first_change(before, [(1, "ssm")]) is not None


def test_fill_keeps_what_it_is_told_to():
    """Hiding all but what a step reads leaves those bits alone."""
    p = pages()
    p.ssm.fill_(2.0)
    p.conv.fill_(3.0)

    p.fill("nan", keep=[(2, "ssm")])

    assert (p.ssm[2] == 2.0).all() and p.conv.isnan().all()
    assert p.ssm[[0, 1, 3]].isnan().all()
    p.fill("zero")
    assert (p.ssm == 0).all() and (p.conv == 0).all()


def test_restore_undoes_all_but_the_kept_writes():
    """What a step wrote survives; what hid the rest goes."""
    p = pages(padding=8)
    p.ssm.fill_(2.0)
    before = p.snapshot()
    p.fill("nan")
    p.ssm[1] = 5.0

    p.restore(before, keep=[(1, "ssm")])

    assert (p.ssm[1] == 5.0).all()
    assert p.first_change(before, [(1, "ssm")]) is None


def test_wide_pages_are_watched_in_part():
    """Padding of any size costs a bounded snapshot, so slots may lie gigabytes apart."""
    p = pages(padding=1 << 20)

    assert p.snapshot()[0].numel() < 4 * 20_000
    assert p.ssm.stride(0) * 4 >= 1 << 20


def test_bits_tell_zeros_apart_and_nans_alike():
    """Bitwise equality, not IEEE equality."""
    t = torch.tensor([0.0, float("nan")])

    assert torch.equal(bits(t), bits(t.clone()))
    assert not torch.equal(bits(t), bits(torch.tensor([-0.0, float("nan")])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_fingerprints_tell_bits_apart(dtype):
    """One changed bit anywhere, two exchanged words, the sign of a zero; not where a tensor lies or how."""
    t = torch.randn(3, 400_000, dtype=torch.float64).to(dtype)
    want = int(fingerprint(t))
    assert int(fingerprint(t.clone())) == want == int(fingerprint(t.t().clone().t()))
    words = bits(t).view(-1)
    for at in (0, 1_048_575, 1_048_576, -1):
        words[at] ^= 1
        assert int(fingerprint(t)) != want
        words[at] ^= 1
    exchanged = t.clone().view(-1)
    exchanged[[5, 1_048_581]] = exchanged[[1_048_581, 5]]
    assert int(fingerprint(exchanged)) != want
    assert int(fingerprint(torch.zeros(4, dtype=dtype))) != int(fingerprint(-torch.zeros(4, dtype=dtype)))
    assert int(fingerprint(t)) == want
