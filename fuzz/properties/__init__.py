"""The properties, one module each; ``load_all`` fills the registry."""

import importlib
import pkgutil

from gdn_apc.fuzz.properties.base import REGISTRY, Checked, Property, Violation, register

__all__ = ["REGISTRY", "Checked", "Property", "Violation", "load_all", "register"]


def load_all() -> dict[str, Property]:
    """Import every module of this package, in name order, and return the registry."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return REGISTRY
