"""Short forms of the campaign's options (``--target``, ``--smoke``, …) for our own checkout.

The plugin itself namespaces them, because it is loaded into other projects' sessions too.
"""

from gdn_apc.fuzz import options


def pytest_addoption(parser):
    """``pytest -m fuzz --smoke`` here is ``pytest -m fuzz --gdn-smoke`` elsewhere."""
    options.add_short(parser.getgroup("gdn-apc").addoption)


def pytest_ignore_collect(collection_path, config):
    """``pytest -m fuzz`` needs none of the tests: importing them would cost time, and import kernels too early."""
    ours = config.rootpath / "tests"
    if config.option.markexpr == "fuzz" and collection_path == ours:
        return True
    return None
