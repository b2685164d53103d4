"""`partitune studies`: what a database holds."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_json_argument, answer
from partitune.commands.study_arguments import add_database_argument, reading


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    add_json_argument(parser, "JSON on stdout")


def _studies(arguments: argparse.Namespace) -> int:
    from partitune.report.study import studies_table

    with reading(arguments) as store:
        studies = [(study, store.counts(study.name)) for study in store.studies()]
    answer(
        arguments,
        lambda: [{"study": s.name, "state": s.state, "trials": c, "engine": s.engine} for s, c in studies],
        lambda console: console.draw(studies_table(studies)),
    )
    return 0


COMMAND = Command("studies", "the studies of a database", _studies, _add_arguments)
