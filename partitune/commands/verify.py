"""`partitune verify`: the simulator held against recordings of the real engine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partitune.commands.command import Command, say

if TYPE_CHECKING:  # what works it out is imported when it is asked for
    from partitune.fidelity.verification import Kind


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("schedules", "kv"), help="recorded schedules, or recorded KV plans")
    parser.add_argument("--by-kind", action="store_true", help="also a table of the records by engine and kind")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a JSON file of recordings")


def _verify(arguments: argparse.Namespace) -> int:
    from partitune.fidelity.verification import by_kind, verify_kv, verify_schedules

    check = {"schedules": verify_schedules, "kv": verify_kv}[arguments.what]
    verifications = check(arguments.files)
    for verification in verifications:
        say(verification.text)
    if arguments.by_kind:
        _draw(by_kind(verifications))
    return 0 if all(verification.agrees for verification in verifications) else 1


def _draw(kinds: Sequence[Kind]) -> None:
    from partitune.report.output import Output, table

    columns = ("records", "agree", "steps")[: 3 if kinds[-1].steps else 2]  # a KV plan has none
    rows = [(kind.name, kind.records, kind.agreeing, kind.steps)[: 1 + len(columns)] for kind in kinds]
    Output().draw(table("recordings by engine and kind", ("kind", *columns), rows, columns))


COMMAND = Command("verify", "hold the simulator against recordings of the real engine", _verify, _add_arguments)
