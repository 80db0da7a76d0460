"""The plugin that gives a vLLM 0.31 GDN prefix caching at every block boundary (``mamba_cache_mode="all"``).

Inert unless ``GDN_APC_PLUGIN=1``. ``UPSTREAM.md`` here says what each part would become upstream. Importing this
package imports neither vLLM nor torch code of its own; ``plugin.py`` is vLLM's entry point.
Exercise it with ``pytest -m vllm tests/vllm`` in an environment that has vLLM 0.31.
"""
