"""Tables in windows and pipes."""

from __future__ import annotations

import io
import re
import sys

import pytest

from partitune.report.output import Output, table


class Window(io.StringIO):
    """A stdout that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream)
    rows = (("first", "12,468", "max_num_seqs=128 async_scheduling=true"), ("second", 7, ""))
    grid = table("some [bold]rows[/]", ("name", "blocks", "knobs"), rows, ("blocks",))
    output = Output()
    output.draw(grid)
    output.print("a sentence of more than forty characters, which is long")
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_a_pipe_has_one_line_a_row_whatever_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, io.StringIO(), 30) == [
        "some [bold]rows[/]",
        "name    blocks  knobs",
        "─" * 54,
        "first   12,468  max_num_seqs=128 async_scheduling=true",
        "second       7",
        "",
        "a sentence of more than forty characters, which is long",
    ]


def test_a_window_folds_words_and_never_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, Window(), 40)
    assert [line for line in lines if "12,468" in line] == ["first   12,468  max_num_seqs=128"]
    assert "                async_scheduling=true" in lines
    assert max(map(len, lines)) <= 40


def test_a_window_too_narrow_for_the_table_gets_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(printed(monkeypatch, Window(), 25))
    assert "- name first, blocks 12,468, knobs max_num_seqs=128" in " ".join(text.split())
    assert "- name second, blocks 7 " in " ".join(text.split()) + " "
