"""Meta-tests of the comparison: what it must reject, what it must accept, and what its messages say."""

import pytest
import torch

from gdn_apc.oracle import check, core_step, delta_step, ratios, round_to
from gdn_apc.oracle.compare import overflow_limit
from tests.oracle import regimes, simulated

INPUTS = ["bf16", "fp16", "fp32"]
STATES = ["fp32", "bf16", "fp16"]
PATHS = ["one-token", "chunk"]


def a_row(dtypes, path, *, H=2, HV=4, K=16, V=16, m=30, B=12, seed=0, **names):
    """An ordinary row: the arguments, what the oracle says, and what the simulated kernel computes."""
    m = 1 if path == "one-token" else m
    x = regimes.row(seed, m=m, n=B, H=H, HV=HV, K=K, V=V, dtypes=dtypes, **names)
    args = dict(n=B, block_size=B, chunk_size=8, dtypes=dtypes, scale=None, **x)
    return args, delta_step(**args), simulated.delta(**args)


def quantities(want, got):
    """(expected, actual, tolerance) of a row: its outputs, and the state of each column."""
    yield want.o, got.o_stored, want.o_tol
    for j, write in want.writes.items():
        yield write.state, got.states_stored[j], want.state_tol[j]


def verdicts(want, got):
    """The comparisons of a row."""
    return [check(*quantity) for quantity in quantities(want, got)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", INPUTS)
class TestEveryClass:
    """For every pair of input and cache dtype, for one-token rows and chunks."""

    def test_a_correct_kernel_is_accepted(self, dtype, state, path):
        """Nothing else here means anything without this."""
        _, want, got = a_row((dtype, state), path)
        assert all(found.ok for found in verdicts(want, got))

    def test_an_error_of_twice_the_tolerance_is_found(self, dtype, state, path):
        """In one element, up or down, and the message names that element."""
        _, want, got = a_row((dtype, state), path)
        r = torch.Generator().manual_seed(1)
        for expected, actual, tol in quantities(want, got):
            for sign in (-2, 2):
                at = tuple(int(torch.randint(n, (), generator=r)) for n in expected.shape)
                wrong = actual.double().clone()
                wrong[at] = expected[at] + sign * tol[at]
                found = check(expected, wrong, tol)
                assert found.wrong == 1 and list(found.where.values()) == list(at)
                assert found.ratio == pytest.approx(2)

    def test_a_single_wrong_element_is_rejected(self, dtype, state, path):
        """Half the value, twice, the wrong sign, zero: for the largest element of each row of V or K."""
        _, want, got = a_row((dtype, state), path)
        for expected, actual, tol in quantities(want, got):
            largest = expected.abs().argmax(-1, keepdim=True)
            value = actual.gather(-1, largest)
            for change in (value * 0.5, value * 2, -value, value * 0):
                wrong = actual.scatter(-1, largest, change)
                bad = (ratios(expected, wrong, tol) > 1).sum(-1)
                assert (bad == 1).all()

    def test_thirty_percent_in_one_row_of_4096_is_rejected(self, dtype, state, path):
        """Rows of the state: HV · V = 4,096 of K elements. Every 61st is tried on its own."""
        _, want, got = a_row((dtype, state), path, H=4, HV=32, K=16, V=128, m=5, B=12)
        actual, j = got.states_stored[1], 1
        rows = actual.flatten(0, 1)
        assert rows.shape[0] == 4096
        for row in range(0, 4096, 61):
            wrong = rows.clone()
            wrong[row] *= 1.3
            found = check(want.writes[j].state, wrong.view_as(actual), want.state_tol[j])
            assert not found.ok and found.where["axis 0"] * 128 + found.where["axis 1"] == row

    def test_a_transposed_square_state_is_rejected(self, dtype, state, path):
        """K = V hides it from shapes alone."""
        _, want, got = a_row((dtype, state), path)
        for j, write in want.writes.items():
            assert not check(write.state, got.states_stored[j].mT, want.state_tol[j]).ok

    def test_a_state_of_one_token_less_is_rejected(self, dtype, state, path):
        """Off by one: the state that the step started from, or the one before its last token."""
        args, want, _ = a_row((dtype, state), path)
        if path == "one-token":
            stale = args["state"]
        else:
            shorter = {name: args[name][:-1] for name in ("q", "k", "v", "g", "beta")}
            stale = simulated.delta(**(args | shorter)).states_stored[3]
        last = max(want.writes)
        assert not check(want.writes[last].state, stale, want.state_tol[last]).ok

    def test_nan_is_rejected(self, dtype, state, path):
        """One NaN or infinity anywhere, with its own message."""
        _, want, got = a_row((dtype, state), path)
        for value in (float("nan"), float("inf")):
            wrong = got.o_stored.clone()
            wrong[-1, 2, 3] = value
            found = check(want.o, wrong, want.o_tol, axes=("position", "head", "row"))
            assert found.ratio == float("inf") and found.wrong == 1
            assert (
                f"actual is {value}, expected {float(want.o[-1, 2, 3]):.9g}, which is finite" in found.message
            )


@pytest.mark.parametrize("dtype", INPUTS)
def test_beta_rounded_to_bf16_is_seen_in_one_token_rows(dtype):
    """They are fp32 throughout, whatever the dtypes of inputs and outputs."""
    args, want, _ = a_row((dtype, "fp32"), "one-token")
    rounded = simulated.delta(**(args | dict(beta=args["beta"].bfloat16().float())))
    assert not check(want.writes[1].state, rounded.states[1], want.state_tol[1]).ok


def test_a_carry_that_is_not_persisted_is_seen():
    """fp32 inputs, bf16 cache: going on from the unrounded state is wrong from the next block on."""
    args, want, _ = a_row(("fp32", "bf16"), "chunk")
    unrounded = simulated.delta(**(args | dict(dtypes=("fp32", "fp32"))))
    found = check(want.o, unrounded.o_stored, want.o_tol, axes=("position",), first=12, block_size=12)
    assert found.where["position"] == 24 and found.where["block"] == 2


def test_a_state_cut_off_instead_of_rounded_is_seen():
    """One ulp the wrong way, where the kernel's own errors are far below an ulp."""
    _, want, got = a_row(("bf16", "bf16"), "one-token")
    cut = (got.states[1].view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert not check(want.writes[1].state, cut.bfloat16(), want.state_tol[1]).ok


def test_a_wrong_chunk_decay_is_seen():
    """exp(g) of the chunk's first token forgotten: small gates, bf16."""
    args, want, _ = a_row(("bf16", "fp32"), "chunk", gate="mild")
    g = args["g"].clone()
    g[8] = 0
    forgotten = simulated.delta(**(args | dict(g=g)))
    assert not all(found.ok for found in verdicts(want, forgotten))


def test_zeros_have_a_floor():
    """A fresh state and zero keys: exact zeros pass, subnormal dust passes, anything visible does not."""
    args, _, _ = a_row(("bf16", "fp32"), "chunk", key="zeros")
    zero = args | dict(n=0, state=None, k=args["k"] * 0)
    want = delta_step(**zero)
    assert (want.o == 0).all()
    assert check(want.o, torch.zeros_like(want.o), want.o_tol).ratio == 0
    assert check(want.o, torch.full_like(want.o, 1e-39), want.o_tol).ok
    assert not check(want.o, torch.full_like(want.o, 1e-30), want.o_tol).ok


def test_tolerances_do_not_depend_on_other_rows_of_the_state():
    """A head's tolerance is its own: scaling another head's values changes no number of it."""
    args, want, _ = a_row(("fp32", "fp32"), "one-token")
    scaled = args | dict(v=args["v"].clone(), state=args["state"].clone())
    scaled["v"][:, 3] *= 1000
    scaled["state"][3] *= 1000
    other = delta_step(**scaled)
    assert torch.equal(other.o_tol[:, :3], want.o_tol[:, :3])
    assert torch.equal(other.state_tol[1][:3], want.state_tol[1][:3])


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**12])
@pytest.mark.parametrize("path", PATHS)
def test_tolerances_scale_with_the_values(path, scale):
    """Values and states times a power of two: tolerances times the same."""
    args, want, _ = a_row(("fp32", "fp32"), path)
    found = delta_step(**(args | dict(v=args["v"] * scale, state=args["state"] * scale)))
    torch.testing.assert_close(found.o_tol, want.o_tol * scale, rtol=1e-9, atol=0)


def test_the_message_says_it_all():
    """What, where by name (request, column, position, block, head, row), expected, actual, error, tolerance, ratio."""
    expected = torch.zeros(4, 2, 3, dtype=torch.float64) + 1
    actual = expected.float().clone()
    actual[2, 1, 0], actual[3, 0, 2] = 1.5, 3.0
    found = check(
        expected,
        actual,
        torch.tensor(0.1),
        what="the output",
        axes=("position", "head", "row"),
        first=10,
        block_size=4,
        request=7,
    )
    assert found.where == {"request": 7, "position": 12, "block": 3, "head": 1, "row": 0}
    assert found.message == (
        "the output is wrong at request 7, position 12, block 3, head 1, row 0: expected 1, actual 1.5, error 0.5, "
        "tolerance 0.1, ratio 5; 2 of 24 elements are wrong, worst ratio 20"
    )
    assert (found.wrong, found.ratio, found.ok) == (2, pytest.approx(20), False)


def test_a_right_value_has_no_message():
    """And reports how near it came."""
    found = check(torch.ones(3).double(), torch.tensor([1.0, 1.05, 1.0]), torch.tensor(0.1))
    assert found.ok and found.message == "" and found.ratio == pytest.approx(0.5, rel=1e-4)


def test_a_wrong_shape_is_rejected():
    """Also one that would broadcast."""
    found = check(torch.ones(3, 4), torch.ones(1, 4), torch.tensor(1.0), what="state", column=2)
    assert not found.ok
    assert found.message == "state: has shape [1, 4]; expected [3, 4] at column 2"


def test_nothing_to_compare():
    """No tokens, no error."""
    assert check(torch.ones(0, 4), torch.ones(0, 4), torch.tensor(1.0)).ok


@pytest.mark.parametrize("tol", [float("nan"), -1.0])
def test_a_tolerance_that_is_no_number_is_refused(tol):
    """It would accept anything."""
    with pytest.raises(ValueError, match="tol: has a NaN or a negative number where a value is expected"):
        check(torch.ones(2), torch.ones(2), torch.tensor(tol))


def test_a_zero_tolerance_accepts_equal_values_only():
    """0 / 0 is no error."""
    assert check(torch.ones(2), torch.ones(2), torch.tensor(0.0)).ratio == 0
    assert check(torch.ones(2), torch.tensor([1.0, 1.1]), torch.tensor(0.0)).wrong == 1


def test_an_overflowing_output_is_infinity():
    """Beyond the largest number only infinity of the right sign is right; near the limit both are."""
    limit = overflow_limit("fp16")
    assert limit == 65520
    exact = torch.tensor([1e5, -1e5, limit - 0.5, 6e4]).double()
    tol = torch.tensor(1.0)
    inf = float("inf")
    assert check(exact, torch.tensor([inf, -inf, inf, 6e4]).half(), tol).ok
    assert check(exact, torch.tensor([inf, -inf, 65504.0, 6e4]).half(), tol + 16).ok
    for wrong in ([-inf, -inf, inf, 6e4], [65504.0, -inf, inf, 6e4], [inf, -inf, inf, inf]):
        assert check(exact, torch.tensor(wrong).half(), tol).wrong == 1


def test_undefined_values_accept_anything():
    """After a stored state overflowed, the oracle says NaN: nothing is promised."""
    exact = torch.tensor([float("nan"), 1.0]).double()
    assert check(exact, torch.tensor([float("inf"), 1.0]), torch.tensor([float("nan"), 0.1])).ok
    assert check(exact, torch.tensor([3.0, 2.0]), torch.tensor([0.1, 0.1])).where == {"axis 0": 1}


def test_rounding_the_other_way_is_seen_by_the_core_too():
    """Outputs of the core carry the tolerance of their stored dtype."""
    from tests.oracle.test_core import inputs, layer

    p = layer()
    x, a, b = inputs(p, 1)
    step = dict(n=0, block_size=4, chunk_size=4, state=None, window=None, dtypes=("bf16", "fp32"))
    want = core_step(x, a, b, p, **step)
    stored = round_to(want.o, "bf16")
    assert check(want.o, stored, want.o_tol, dtype="bf16").ok
    away = stored + torch.sign(stored - want.o) * 2.0**-8 * stored.abs()
    assert not check(want.o, away, want.o_tol, dtype="bf16").ok
