"""Every command is written in one way: a file of its name with one `COMMAND`, which `cli.py` lists."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

import partitune.commands
from partitune.cli import COMMANDS
from partitune.commands.command import Command, CommandGroup, add_commands, add_json_argument, answer

FOLDER = Path(partitune.commands.__file__).parent
ALL = [
    inner for command in COMMANDS for inner in (command.commands if isinstance(command, CommandGroup) else (command,))
]


def test_every_file_of_a_command_is_listed_and_bears_its_name() -> None:
    modules = {
        path.stem: importlib.import_module(f"partitune.commands.{path.stem}") for path in sorted(FOLDER.glob("*.py"))
    }
    named = {name: module.COMMAND for name, module in modules.items() if hasattr(module, "COMMAND")}
    assert named == {command.name: command for command in COMMANDS}
    assert sorted(set(modules) - set(named)) == [
        "__init__", "command", "job_arguments", "space_arguments", "standard_streams", "study_arguments",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_its_line_begins_small_and_ends_open(command: Command) -> None:
    assert command.text[0].islower()
    assert not command.text.endswith(".")
    assert command.description == "" or command.description.endswith(".")


def test_the_answer_is_one_line_of_json_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    word = Command("word", "says a word", lambda _: 0, add_json_argument)
    add_commands(parser, (word, CommandGroup("group", "more words", "", (word,))))
    for typed, printed in ((["word"], "a [word]\n"), (["group", "word", "--json"], '{"said": "a [word]"}\n')):
        arguments = parser.parse_args(typed)
        assert arguments.command is word
        answer(arguments, lambda: {"said": "a [word]"}, lambda console: console.say("a [word]"))
        assert capsys.readouterr().out == printed
