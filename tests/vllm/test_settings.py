"""The plugin's own switches. Needs no vLLM."""

from __future__ import annotations

import pytest

from gdn_apc.impl.vllm import plugin, settings
from gdn_apc.impl.vllm.settings import Settings, read


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("true", True), ("On", True), ("0", False), ("", False), ("no", False)]
)
def test_the_switch(value, on):
    """On and off, in the usual spellings."""
    assert settings.enabled({"GDN_APC_PLUGIN": value}) is on


def test_the_switch_is_off_by_default():
    """An installed plugin changes nothing."""
    assert settings.enabled({}) is False


def test_a_switch_that_is_not_understood():
    """Neither on nor off is an error, not off."""
    with pytest.raises(ValueError, match="GDN_APC_PLUGIN: got 'maybe', expected 1 or 0; unset it"):
        settings.enabled({"GDN_APC_PLUGIN": "maybe"})


@pytest.mark.parametrize(
    ("config", "environ", "expected"),
    [
        ({}, {}, Settings(None, False)),
        ({"gdn_prefill_backend": "triton"}, {}, Settings(None, False)),
        ({}, {"GDN_APC_RETENTION": "dense"}, Settings(None, True)),
        ({}, {"GDN_APC_RETENTION": "2048"}, Settings(2048, True)),
        ({"gdn_apc": {"retention": 0}}, {"GDN_APC_RETENTION": "2048"}, Settings(0, True)),
        ({"gdn_apc": {"retention": "dense"}}, {"GDN_APC_RETENTION": "0"}, Settings(None, True)),
    ],
)
def test_retention(config, environ, expected):
    """Dense by default; the configuration goes before the environment."""
    assert read(config, environ) == expected


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"gdn_apc": {"retention": -1}},
            r"\['retention'\]: got -1, expected 'dense', 0, or a number of tokens",
        ),
        ({"gdn_apc": {"retention": "all"}}, "got 'all', expected 'dense', 0"),
        ({"gdn_apc": {"retention": True}}, "got True, expected 'dense', 0"),
        ({"gdn_apc": {"retentoin": 0}}, "unknown key 'retentoin', expected 'retention'; remove it"),
    ],
)
def test_settings_that_are_not_understood(config, text):
    """Named, with what was expected."""
    with pytest.raises(ValueError, match=text):
        read(config, {})


def test_a_section_that_is_no_mapping():
    """The section's type is checked too."""
    with pytest.raises(TypeError, match="expected a mapping such as"):
        read({"gdn_apc": "dense"}, {})


@pytest.mark.parametrize(
    ("version", "environ", "text"),
    [
        (None, {}, "inactive, vLLM is not installed"),
        ("0.31.0", {}, "inactive, set GDN_APC_PLUGIN=1 (vLLM 0.31.0)"),
        ("0.31.0", {"GDN_APC_PLUGIN": "si"}, "would not start: GDN_APC_PLUGIN: got 'si'"),
        (
            "0.31.0",
            {"GDN_APC_PLUGIN": "1", "VLLM_PLUGINS": "a,b"},
            "inactive, VLLM_PLUGINS='a,b' does not name",
        ),
        ("0.33.0", {"GDN_APC_PLUGIN": "1"}, "vLLM 0.33.0 would not start, the plugin supports 0.31.x"),
        ("0.31.0", {"GDN_APC_PLUGIN": "1"}, "active in vLLM 0.31.0, for GDN models served with"),
    ],
)
def test_status(monkeypatch, version, environ, text):
    """What ``gdn-apc doctor`` says of the plugin."""
    monkeypatch.delenv("GDN_APC_PLUGIN", raising=False)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(plugin, "_version", lambda name: version)
    assert text in plugin.status()[0]
