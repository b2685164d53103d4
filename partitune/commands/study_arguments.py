"""The arguments that name a study of a database."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from partitune.api import DATABASE
from partitune.commands.command import add_json_argument

if TYPE_CHECKING:  # for annotations only: these imports cost most of a second
    from partitune.store import Store


def add_study_argument(parser: argparse.ArgumentParser) -> None:
    """The study that is meant, as a word of its own that may be left out."""
    parser.add_argument("study", nargs="?", help="study (default: the one created last)")


def add_database_argument(parser: argparse._ActionsContainer) -> None:
    """Which database it is in."""
    parser.add_argument("--db", default=DATABASE, help=f"results database (default: {DATABASE})")


def add_stored_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Which study of which database, and how its figures come out."""
    add_study_argument(parser)
    add_database_argument(parser)
    add_json_argument(parser, "JSON on stdout")


def reading(arguments: argparse.Namespace) -> Store:
    """The database, to read only. Raises StoreError."""
    gc.set_threshold(50_000)  # imports make that many objects; to look through them is a tenth of what reading takes
    from partitune.store import Store

    return Store.open(arguments.db, read_only=True)
