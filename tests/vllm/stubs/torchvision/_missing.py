"""Any public name, as None."""


def missing(name: str) -> None:
    """Module-level ``__getattr__``: dunder names are really missing, all others are None."""
    if name.startswith("__"):
        raise AttributeError(name)
