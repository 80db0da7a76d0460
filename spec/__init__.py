"""Why the cache is right: the TLA+ design of GDN prefix caching, and what runs the model checker on it.

The modules are in ``spec/tla``; ``spec/README.md`` maps them to the code. This package may import
``gdn_apc.oracle`` and the standard library; it needs Java and ``tla2tools.jar`` (``pip install 'gdn-apc[spec]'``).
Exercise it with ``gdn-apc spec``, or ``pytest tests/spec``.
"""

from pathlib import Path

MODULES = Path(__file__).parent / "tla"
"""The folder of the TLA+ modules."""
