"""`partitune list`: what a name can mean."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_json_argument, answer, say


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser, "JSON on stdout")


def _list(arguments: argparse.Namespace) -> int:
    from partitune.models.published import catalog_names
    from partitune.report.output import table
    from partitune.spec.catalog import Kind, list_catalog

    entries = [entry for kind in Kind for entry in list_catalog(kind)]
    files = [{"name": e.name, "kind": e.kind.value, "origin": e.origin, "file": e.label} for e in entries]
    rows = ((entry.name, entry.kind.words, entry.origin, entry.label) for entry in entries)
    answer(
        arguments,
        lambda: {"files": files, "models": list(catalog_names())},
        lambda console: console.draw(table("search spaces and runners", ("name", "kind", "origin", "file"), rows)),
    )
    if not arguments.json:
        say(f"models: {', '.join(catalog_names())}")
    return 0


COMMAND = Command("list", "search spaces, runners and models that a name can mean", _list, _add_arguments)
