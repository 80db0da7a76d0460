"""Names that are imported and never called for text."""

from .._missing import missing as __getattr__  # noqa: F401
