"""What attacks: strategies, properties, targets, the cache machine, and the pytest plugin.

May import ``oracle``, ``impl`` and ``spec``. This file imports nothing, because the pytest plugin
is loaded into every adopter's pytest and must start without torch, triton or hypothesis.
Exercise it with ``pytest -m fuzz``.
"""
