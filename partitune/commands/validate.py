"""`partitune validate`: predictions held against what others measured and published."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command

TABLES = ("layers", "servers", "pairs")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all of them if left out")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th server; all take minutes")


def _validate(arguments: argparse.Namespace) -> int:
    from partitune.errors import SpecError
    from partitune.fidelity.validation import validate
    from partitune.report.output import Output
    from partitune.report.validation import print_validation

    if unknown := [name for name in arguments.tables if name not in TABLES]:
        raise SpecError(f"validate: {unknown[0]!r} is not a table; allowed: {', '.join(TABLES)}")
    if arguments.every < 1:
        raise SpecError(f"--every: {arguments.every}; allowed: a whole number of 1 or more")
    passed = True
    for validation in validate(arguments.tables or TABLES, arguments.every):
        print_validation(Output(), validation)
        passed &= validation.verdict is None or validation.verdict.passed
    return 0 if passed else 1


COMMAND = Command("validate", "hold predictions against published measurements", _validate, _add_arguments)
