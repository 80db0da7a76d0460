"""The engine on the Triton kernels, in the mended interpreter: what a GPU would run, on a CPU, for a few tokens.

The environment of vLLM has no Triton (its CPU build of torch does not load beside it), so another one lends its own:
``GDN_APC_TRITON=SITE_PACKAGES pytest -m vllm tests/vllm/test_triton.py``, a folder that holds ``triton``, same Python.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from test_vllm_plugin import python

SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import serving
from gdn_apc.impl.vllm import plugin
plugin.register()
from gdn_apc.impl.vllm import layer, metadata
engine = serving.Engine(sys.argv[2], max_num_batched_tokens=128)
prompt = serving.tokens(20, 150)
prompts = [prompt, prompt, prompt[:100] + serving.tokens(21, 20), [7]]
plain = [engine.one(p, generate=3) for p in prompts]
engine.reset()

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[3])
from gdn_apc.fuzz import interpreter
interpreter.activate()
core, build, calls = layer.gdn_core, metadata.build_metadata, []

def by_kernels(*arguments, **options):
    calls.append(arguments[0].shape[0])
    return core(*arguments, **options | dict(backend="triton"))

layer.gdn_core = by_kernels
metadata.build_metadata = lambda *arguments, **options: build(*arguments, **options, backend="triton")
from audit import Audit
with Audit(engine) as audit:
    ours = [engine.one(p, generate=3) for p in prompts]
    published = audit.published()
apart = max((a.logprobs[0] - b.logprobs[0]).abs().max().item() for a, b in zip(plain, ours))
print(json.dumps(dict(
    hits=[a.hit for a in ours], steps=len(calls), published=published, worst=audit.worst, apart=apart,
    same=bool((ours[0].logprobs == ours[1].logprobs).all()),
)))
"""


def test_the_kernels_in_the_engine(environment, checkpoints, tmp_path):
    """Hits, labels, outputs, states and windows as audited, and a hit changes no bit, with every GDN layer on the kernels."""
    lender = os.environ.get("GDN_APC_TRITON")
    if not lender:
        pytest.skip("needs GDN_APC_TRITON, a site-packages folder with triton; this file says how")
    (tmp_path / "triton").symlink_to(Path(lender) / "triton", target_is_directory=True)
    here = str(Path(__file__).parent)
    found = json.loads(python(SCRIPT, environment, here, str(checkpoints("qwen3_5")), str(tmp_path)))
    assert found["hits"] == [0, 128, 64, 0]
    assert found["steps"] > 3 * 10 and found["published"] > 0
    assert found["worst"] <= 1 and found["same"] and found["apart"] < 0.5
