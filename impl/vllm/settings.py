"""The plugin's own switches, from the environment and from vLLM's ``--additional-config``.

========================  ==========================  ====================================================
environment               additional_config[gdn_apc]  meaning
========================  ==========================  ====================================================
``GDN_APC_PLUGIN``        (not there)                 ``1`` registers the plugin; anything else leaves vLLM alone
``GDN_APC_RETENTION``     ``retention``               ``dense`` (default) keeps every state, N > 0 one each N
                                                      tokens, ``0`` vLLM's semantic checkpoints alone
========================  ==========================  ====================================================

The retention has a switch of its own because vLLM's ``prefix_cache_retention_interval`` has a default of 0, which
cannot be told from an explicit 0 and would drop nearly every state. Imports the standard library only.
Exercise it with ``pytest tests/vllm/test_settings.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENABLE = "GDN_APC_PLUGIN"
RETENTION = "GDN_APC_RETENTION"
SECTION = "gdn_apc"
CHUNK_SIZE = 64
"""C of the kernels: chunk edges are multiples of it, counted from the last block boundary."""


def enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for the plugin. Raises ``ValueError`` for a value that is neither on nor off."""
    value = environ.get(ENABLE, "0").strip().lower()
    if value in ("", "0", "false", "off", "no"):
        return False
    if value in ("1", "true", "on", "yes"):
        return True
    raise ValueError(f"{ENABLE}: got {value!r}, expected 1 or 0; unset it to leave vLLM as it is")


@dataclass(frozen=True)
class Settings:
    """The switches of one engine."""

    retention: int | None = None
    """Tokens between retained states; None keeps every block's."""
    retention_is_set: bool = False
    """Somebody chose the retention, so it goes before vLLM's own option."""


def read(additional_config: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of an engine: ``additional_config["gdn_apc"]`` goes before the environment.

    Raises:
        TypeError, ValueError: an unknown key or a value that is not understood; the message names it.
    """
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(section, Mapping):
        raise TypeError(
            f"additional_config[{SECTION!r}]: got {section!r}, expected a mapping such as {{'retention': 'dense'}}"
        )
    unknown = set(section) - {"retention"}
    if unknown:
        raise ValueError(
            f"additional_config[{SECTION!r}]: unknown key {sorted(unknown)[0]!r}, expected 'retention'; remove it"
        )
    if "retention" in section:
        return Settings(
            _retention(f"additional_config[{SECTION!r}]['retention']", section["retention"]), True
        )
    if environ.get(RETENTION, "") != "":
        return Settings(_retention(RETENTION, environ[RETENTION]), True)
    return Settings()


def _retention(name: str, value: Any) -> int | None:
    if value == "dense":
        return None
    try:
        tokens = int(value)
    except (TypeError, ValueError):
        tokens = -1
    if tokens < 0 or isinstance(value, (bool, float)):
        raise ValueError(
            f"{name}: got {value!r}, expected 'dense', 0, or a number of tokens that is a multiple of the block size"
        )
    return tokens
