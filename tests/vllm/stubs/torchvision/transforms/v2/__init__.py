"""The package alone."""

from . import functional  # noqa: F401
