"""The arguments that name a study of a database."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations only: these imports cost most of a second
    from partitune.store import Store

DEFAULT_DATABASE = "results.db"


def add_study_arguments(command: argparse.ArgumentParser) -> None:
    """Which study of which database, and how its figures come out."""
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    add_output_arguments(command, "JSON on stdout")


def add_output_arguments(command: argparse.ArgumentParser, text: str) -> None:
    """`--db`, and `--json` with its help text."""
    command.add_argument("--db", default=DEFAULT_DATABASE, help=f"results database (default: {DEFAULT_DATABASE})")
    command.add_argument("--json", action="store_true", help=text)


def reading(arguments: argparse.Namespace) -> Store:
    """The database, to read only. Raises StoreError."""
    from partitune.store import Store

    return Store.open(arguments.db, read_only=True)
