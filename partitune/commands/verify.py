"""`partitune verify`: the simulator held against recordings of the real engine."""

from __future__ import annotations

import argparse

from partitune.commands.command import Commands, add_command


def add_verify(commands: Commands) -> None:
    """Add `verify` to the command line."""
    command = add_command(commands, "verify", _verify, "hold the simulator against recordings of the real engine")
    command.add_argument("what", choices=("schedules", "kv"), help="recorded schedules, or recorded KV plans")
    command.add_argument("files", nargs="+", metavar="FILE", help="a JSON file of recordings")


def _verify(arguments: argparse.Namespace) -> int:
    from partitune.fidelity.verification import verify_kv, verify_schedules

    check = {"schedules": verify_schedules, "kv": verify_kv}[arguments.what]
    found = check(arguments.files)
    for one in found:
        print(one.text)
    return 0 if all(one.agrees for one in found) else 1
