"""`partitune list`: what a name can mean."""

from __future__ import annotations

import argparse
import json

from partitune.commands.command import Commands, add_command


def add_list(commands: Commands) -> None:
    """Add `list` to the command line."""
    command = add_command(commands, "list", _list, "search spaces, runners and models that a name can mean")
    command.add_argument("--json", action="store_true", help="JSON on stdout")


def _list(arguments: argparse.Namespace) -> int:
    from partitune.models.published import catalog_names
    from partitune.report.output import stdout, table
    from partitune.spec.catalog import Kind, list_catalog

    entries = [entry for kind in Kind for entry in list_catalog(kind)]
    if arguments.json:
        files = [{"name": e.name, "kind": e.kind.value, "origin": e.origin, "file": e.label} for e in entries]
        print(json.dumps({"files": files, "models": list(catalog_names())}))
    else:
        rows = ((entry.name, entry.kind.words, entry.origin, entry.label) for entry in entries)
        stdout().draw(table("search spaces and runners", ("name", "kind", "origin", "file"), rows))
        print(f"models: {', '.join(catalog_names())}")
    return 0
