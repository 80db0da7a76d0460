"""Bad input to the operators: each error names the argument, its value, what was expected and what to do."""

import pytest
import torch

from gdn_apc.impl import build_metadata, causal_conv1d, gated_delta_rule, gdn_core, gdn_gates
from gdn_apc.impl._checks import check_page_alignment

H, HV, K, V, W = 1, 2, 16, 8, 4
D = 2 * H * K + HV * V
T = 3


def meta(chunk_size=16):
    return build_metadata(
        torch.tensor([T], dtype=torch.int32),
        torch.tensor([0, T], dtype=torch.int32),
        torch.tensor([[1]], dtype=torch.int32),
        block_size=4,
        chunk_size=chunk_size,
        max_query_len=T,
        num_tokens=T,
    )


def delta(**change):
    args = dict(
        q=torch.zeros(T, H, K),
        k=torch.zeros(T, H, K),
        v=torch.zeros(T, HV, V),
        g=torch.zeros(T, HV),
        beta=torch.zeros(T, HV),
        ssm_state=torch.zeros(2, HV, V, K),
        meta=meta(),
        backend="torch",
    )
    return gated_delta_rule(**(args | change))


def conv(**change):
    args = dict(
        x=torch.zeros(T, D),
        weight=torch.zeros(D, W),
        bias=None,
        conv_state=torch.zeros(2, W - 1, D),
        meta=meta(),
        backend="torch",
    )
    return causal_conv1d(**(args | change))


@pytest.mark.parametrize(
    ("call", "change", "error", "text"),
    [
        (delta, {"q": torch.zeros(T, K)}, ValueError, r"q: expected shape \[any, any, any\], got \[3, 16\]"),
        (delta, {"q": torch.zeros(T, H, K).double()}, TypeError, "q: expected one of bfloat16, float16, float32, got torch.float64"),
        (delta, {"k": torch.zeros(T, H, K).half()}, TypeError, "k: expected one of float32, got torch.float16"),
        (delta, {"k": torch.zeros(T, H, K + 1)}, ValueError, r"k: expected shape \[3, 1, 16\], got \[3, 1, 17\]"),
        (delta, {"v": torch.zeros(T, 3, V), "q": torch.zeros(T, 2, K), "k": torch.zeros(T, 2, K)}, ValueError, "v: 3 heads, expected a multiple of q's 2"),
        (delta, {"v": torch.zeros(T, V, HV).transpose(1, 2)}, ValueError, "v: strides .*, expected a last dimension of stride 1"),
        (delta, {"out": torch.zeros(T, HV, V).half()}, TypeError, "out: expected one of float32, got torch.float16"),
        (delta, {"out": torch.zeros(T, 2 * HV, V)[:, ::2]}, ValueError, "out: strides .*, expected heads side by side; pass a contiguous"),
        (delta, {"q": torch.zeros(H, T, 2 * K)[:, :, :K].transpose(0, 1)}, None, ""),
        (delta, {"v": torch.zeros(T, HV, 2 * V)[:, :, :V]}, ValueError, "v: strides .*, expected heads side by side"),
        (delta, {"g": torch.zeros(T, HV).half()}, TypeError, "g: expected one of float32, got torch.float16"),
        (delta, {"beta": torch.zeros(T, HV + 1)}, ValueError, r"beta: expected shape \[3, 2\], got \[3, 3\]"),
        (delta, {"ssm_state": torch.zeros(2, HV, K, V)}, ValueError, r"ssm_state: expected shape \[any, 2, 8, 16\], got \[2, 2, 16, 8\]"),
        (delta, {"meta": meta(128)}, ValueError, "chunk_size: 128, expected at most 64"),
        (delta, {"q": torch.zeros(2, H, K), "k": torch.zeros(2, H, K), "v": torch.zeros(2, HV, V), "g": torch.zeros(2, HV), "beta": torch.zeros(2, HV)}, ValueError, "q: 2 tokens, but the metadata was built for 3"),
        (delta, {"backend": "cuda"}, ValueError, "backend: expected 'triton', 'torch' or None, got 'cuda'"),
        (conv, {"weight": torch.zeros(D, 1), "conv_state": torch.zeros(2, 0, D)}, ValueError, "weight: width 1, expected at least 2"),
        (conv, {"bias": torch.zeros(D + 1)}, ValueError, "bias: expected shape"),
        (conv, {"conv_state": torch.zeros(2, D, W - 1)}, ValueError, "conv_state: expected shape"),
        (conv, {"conv_state": torch.zeros(2, W - 1, D).half()}, TypeError, "conv_state: torch.float16 cannot hold torch.float32 inputs exactly"),
        (conv, {"activation": "relu"}, ValueError, "activation: expected 'silu' or None, got 'relu'"),
        (conv, {"x": torch.zeros(D, T).t()}, ValueError, r"x: strides \(1, 3\), expected a last dimension of stride 1; call .contiguous\(\)"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, change, error, text):
    """The good call passes; one change at a time fails, and says why."""
    call()
    if error is None:
        call(**change)
        return
    with pytest.raises(error, match=text):
        call(**change)


def test_the_core_checks_its_parts_against_each_other():
    """The states must agree on the slots, x with the heads."""
    args = dict(
        x=torch.zeros(T, D),
        a=torch.zeros(T, HV),
        b=torch.zeros(T, HV),
        conv_weight=torch.zeros(D, W),
        conv_bias=None,
        A_log=torch.zeros(HV),
        dt_bias=torch.zeros(HV),
        conv_state=torch.zeros(2, W - 1, D),
        ssm_state=torch.zeros(2, HV, V, K),
        meta=meta(),
        num_k_heads=H,
        head_k_dim=K,
        backend="torch",
    )
    gdn_core(**args)
    with pytest.raises(ValueError, match="conv_state: 3 slots, ssm_state has 2; a slot holds both"):
        gdn_core(**(args | {"conv_state": torch.zeros(3, W - 1, D)}))
    with pytest.raises(ValueError, match=r"x: expected shape \[any, 80\], got \[3, 48\]"):
        gdn_core(**(args | {"num_k_heads": 2}))


def test_gates_check_their_heads():
    """A_log has one entry a value head."""
    with pytest.raises(ValueError, match=r"A_log: expected shape \[2\], got \[3\]"):
        gdn_gates(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(3), torch.zeros(2))


def test_pages_must_be_aligned():
    """The Triton path refuses pages whose alignment would change the compiler's layouts, and with them bits."""
    check_page_alignment("ssm_state", torch.zeros(2, 32)[:, :20])
    with pytest.raises(ValueError, match="ssm_state: address 0 modulo 16 and a slot stride of 20 elements"):
        check_page_alignment("ssm_state", torch.zeros(2, 20))


def test_wide_heads_are_refused_by_the_kernels():
    """Only the PyTorch path takes heads of q and k above 128."""
    wide = dict(q=torch.zeros(T, H, 256), k=torch.zeros(T, H, 256), ssm_state=torch.zeros(2, HV, V, 256))
    delta(**wide)
    with pytest.raises(
        ValueError, match="q: heads of 256, the Triton kernels take at most 128; pass backend='torch'"
    ):
        delta(**wide, backend="triton")
