"""The plugin as vLLM loads it: off by default, filtered by ``VLLM_PLUGINS``, in every process, once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from serving import tokens

STATE = """
import json, sys
from vllm.plugins import load_general_plugins
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
load_general_plugins()
from vllm import ModelRegistry
import gdn_apc.impl.vllm.plugin as plugin
for _ in range(2):
    plugin.register()
ours = lambda thing: "gdn_apc" in thing
print(json.dumps(dict(
    layers=sorted(op_registry_oot),
    hooks=sorted(name for name, hook in MODELS_CONFIG_MAP.items() if hasattr(hook, "upstream")),
    models=sorted(n for n, m in ModelRegistry.models.items() if ours(getattr(m, "module_name", ""))),
    modules=sorted(name for name in sys.modules if name.startswith("gdn_apc.impl.vllm.")),
)))
"""

SERVE = """
import json, sys
if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import serving
    from vllm import LLM
    options = json.loads(sys.argv[3])
    llm = LLM(model=sys.argv[2], skip_tokenizer_init=True, **(serving.DEFAULTS | options))
    answers = []
    for prompt in json.loads(sys.argv[4]):
        [output] = llm.generate([{"prompt_token_ids": prompt}], serving.Engine.sampling(None, 4), use_tqdm=False)
        answer = serving._answer(output)
        answers.append((answer.hit, answer.tokens, answer.logprobs.double().sum().item()))
    print("ANSWERS", json.dumps(answers))
"""


def python(code: str, environment: dict[str, str], *arguments: str) -> str:
    """The last line that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def serve(tmp_path, model, environment: dict[str, str], prompts, **options) -> list:
    """(hit, tokens, sum of all log probabilities) of each prompt, from an engine in a process of its own."""
    script = tmp_path / "serve.py"  # a file, because worker processes import it again
    script.write_text(SERVE)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, here, model, json.dumps(options), json.dumps(prompts)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))
    return json.loads(line.removeprefix("ANSWERS "))


@pytest.mark.parametrize(
    "variables",
    [{"GDN_APC_PLUGIN": "0"}, {"GDN_APC_PLUGIN": "1", "VLLM_PLUGINS": "another"}],
    ids=["off", "filtered"],
)
def test_inert(environment, variables):
    """Nothing registered, nothing replaced, nothing imported but the switches."""
    code = STATE.replace("    plugin.register()", "    pass") if "VLLM_PLUGINS" in variables else STATE
    state = json.loads(python(code, environment | variables))
    assert state["layers"] == state["hooks"] == state["models"] == []
    assert state["modules"] == ["gdn_apc.impl.vllm.plugin", "gdn_apc.impl.vllm.settings"]


def test_registered_once(environment):
    """Loading it again changes nothing; models are not imported by registering them."""
    from gdn_apc.impl.vllm.plugin import MODELS

    state = json.loads(python(STATE, environment | {"VLLM_PLUGINS": "gdn_apc"}))
    assert state["layers"] == ["QwenGatedDeltaNetAttention"]
    assert state["hooks"] == state["models"] == sorted(MODELS)
    assert not [name for name in state["modules"] if "models_" in name]


def test_another_vllm_is_refused(vllm, monkeypatch):
    """A release that it was not written for is an error at start, not a wrong answer later."""
    from gdn_apc.impl.vllm import plugin

    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    with pytest.raises(
        RuntimeError, match=r"vLLM 0.32.0 is installed, the plugin supports 0.31.x; install vllm==0"
    ):
        plugin.register()


def test_every_process_has_it(environment, engines, checkpoints, tmp_path):
    """Engine core and two tensor-parallel workers, each a process: the first sibling hits there too.

    Heads are divided over the ranks; hits are the same, and so are probabilities but for rounding.
    """
    prompt = tokens(92, 200)
    prompts = [prompt, prompt, prompt[:150] + tokens(93, 20)]
    processes = environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    answers = serve(tmp_path, checkpoints("qwen3_next"), processes, prompts, tensor_parallel_size=2)
    alone = list(map(engines().one, prompts))
    assert [hit for hit, _, _ in answers] == [a.hit for a in alone] == [0, 192, 128]
    for (_, _, total), one in zip(answers, alone):
        assert total == pytest.approx(one.logprobs.double().sum().item(), rel=0.02)


def test_other_modes_are_vllms_own(environment, engines, checkpoints, tmp_path):
    """Enabled, but in ``align`` mode: the bits of a vLLM without the plugin."""
    kind, prompts = "qwen3_next-square", [tokens(94, 200)] * 2 + [tokens(94, 150) + tokens(95, 20)]
    stock = serve(
        tmp_path, checkpoints(kind), environment | {"GDN_APC_PLUGIN": "0"}, prompts, mamba_cache_mode="align"
    )
    engine = engines(kind, mamba_cache_mode="align")
    ours = [(a.hit, a.tokens, a.logprobs.double().sum().item()) for a in map(engine.one, prompts)]
    assert [tuple(s) for s in stock] == ours
    assert ours[2][0] == 0  # the first sibling, which ``all`` serves


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [128, 192]),
        (dict(additional_config={"gdn_apc": {"retention": 128}}), [128, 128]),
        (dict(additional_config={"gdn_apc": {"retention": 0}}), [0, 0]),
        (dict(prefix_cache_retention_interval=192), [0, 192]),
    ],
    ids=["default", "every 128", "none", "vLLM's own option"],
)
def test_retention(engines, options, expected):
    """Dense unless told otherwise; with vLLM's default of 0, siblings would find nothing."""
    engine, prompt, hits = engines(**options), tokens(96, 300), []
    for shared in (150, 200):
        engine.reset()
        engine.one(prompt, generate=1)
        hits.append(engine.one(prompt[:shared] + tokens(97, 9), generate=1).hit)
    assert hits == expected


def test_block_size_follows_the_page(engines):
    """Multiples of 64 and of vLLM's own block (128 on a CPU), not of 2,048; or what the user says."""
    assert engines().block_size == 64
    assert engines(block_size=None).block_size == 128
    assert engines(block_size=32, mamba_block_size=32).block_size == 32
