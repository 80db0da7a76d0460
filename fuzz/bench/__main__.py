"""``python -m gdn_apc.fuzz.bench``: the command where the package is not installed."""

import argparse
import sys

from gdn_apc.fuzz.bench import command

parser = argparse.ArgumentParser(
    prog="gdn-apc bench", epilog=command.EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
)
command.options(parser)
sys.exit(command.run(parser.parse_args(), parser))
