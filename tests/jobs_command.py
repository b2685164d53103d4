"""`submit` and `jobs` as a command line of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from partitune.errors import PartituneError
from partitune.jobs.arguments import add_commands


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="partitune")
    add_commands(parser.add_subparsers(required=True))
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.handler(arguments)
    except PartituneError as error:
        print(f"partitune: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
