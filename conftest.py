"""Short forms of the campaign's options (``--target``, ``--smoke``, …) for our own checkout.

The plugin itself namespaces them, because it is loaded into other projects' sessions too.
"""

from pathlib import Path

from gdn_apc.fuzz import options

TESTS = Path(__file__).parent / "tests"


def pytest_addoption(parser):
    """``pytest -m fuzz --smoke`` here is ``pytest -m fuzz --gdn-smoke`` elsewhere."""
    try:
        options.add_short(parser.getgroup("gdn-apc").addoption)
    except ValueError:
        # Another project collects our campaign from an editable install, and has such an option itself. Its
        # command line was parsed long ago, so nothing is lost.
        return


def pytest_ignore_collect(collection_path, config):
    """``pytest -m fuzz`` needs none of the tests: importing them would cost time, and import kernels too early."""
    return True if config.option.markexpr == "fuzz" and collection_path.is_relative_to(TESTS) else None
