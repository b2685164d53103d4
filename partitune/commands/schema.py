"""`partitune schema`: what an editor needs to complete and check a YAML file while it is typed."""

from __future__ import annotations

import argparse
import json

from partitune.commands.command import Command, say


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("search-space", "runner"), help="the kind of file")


def _schema(arguments: argparse.Namespace) -> int:
    from partitune.spec.runner import Runner
    from partitune.spec.search_space import SearchSpace

    model = Runner if arguments.kind == "runner" else SearchSpace
    say(json.dumps(model.json_schema(), indent=2))
    return 0


COMMAND = Command(
    "schema",
    "the JSON Schema of a search space or a runner, for editors",
    _schema,
    _add_arguments,
    "The JSON Schema of a search space or a runner, for editors. Editors with a YAML language server read it from a "
    "first line such as `# yaml-language-server: $schema=search_space.schema.json`.",
)
