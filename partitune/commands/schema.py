"""`partitune schema`: what an editor needs to complete and check a YAML file while it is typed."""

from __future__ import annotations

import argparse
import json

from partitune.commands.command import Commands, add_command

_MORE = (
    "Editors with a YAML language server read it from a first line such as "
    "`# yaml-language-server: $schema=search_space.schema.json`."
)


def add_schema(commands: Commands) -> None:
    """Add `schema` to the command line."""
    text = "the JSON Schema of a search space or a runner, for editors"
    command = add_command(commands, "schema", _schema, text, more=_MORE)
    command.add_argument("kind", choices=("search-space", "runner"), help="the kind of file")


def _schema(arguments: argparse.Namespace) -> int:
    from partitune.spec.catalog import Kind
    from partitune.spec.schema import json_schema

    print(json.dumps(json_schema(Kind(arguments.kind.replace("-", "_"))), indent=2))
    return 0
