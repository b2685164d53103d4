"""`partitune verify`: the simulator held against recordings of the real engine."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, say


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("schedules", "kv"), help="recorded schedules, or recorded KV plans")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a JSON file of recordings")


def _verify(arguments: argparse.Namespace) -> int:
    from partitune.fidelity.verification import verify_kv, verify_schedules

    check = {"schedules": verify_schedules, "kv": verify_kv}[arguments.what]
    verifications = check(arguments.files)
    for verification in verifications:
        say(verification.text)
    return 0 if all(verification.agrees for verification in verifications) else 1


COMMAND = Command("verify", "hold the simulator against recordings of the real engine", _verify, _add_arguments)
