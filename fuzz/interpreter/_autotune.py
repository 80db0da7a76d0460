"""Autotuned kernels without tuning: the interpreter has no times to compare, and on a GPU every new shape would be timed.

Imports triton only. Exercise it with ``pytest tests/fuzz/test_verdicts.py -k tuning``.
"""

from triton.runtime.autotuner import Autotuner


def _first_configuration(self, *args, **kwargs):
    """Replaces ``Autotuner.run``: nothing is timed, the first configuration runs, its pre-hook included."""
    config = self.best_config = self.configs[0]
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(self.arg_names, args)), **kwargs, **config.all_kwargs()})
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


def first_configurations() -> None:
    """Autotuned kernels take their first configuration, in the interpreter and on a GPU: nothing is timed."""
    Autotuner.run = _first_configuration
