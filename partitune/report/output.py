"""Where tables and sentences are printed: a window of some width, or a pipe.

Decision: rich draws; we add what it leaves out. Text is printed as it stands, whatever brackets are in it;
control characters are spelled out, as it may come from an engine's log. Lines end
without blanks, so that output can be compared and pasted. In a pipe a row is one line and a sentence is one line,
whatever the window. In a window, words fold and figures never do; where even that is too wide, every row is told as a
sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from partitune.errors import printable

#: Columns whose cells are words, which may stand on several lines.
FOLDED = ("kinds", "knobs", "reason", "file")
_ANY_WIDTH = 10_000


class Output(Console):
    """Standard output, on which sentences and tables are printed."""

    def __init__(self) -> None:
        window = sys.stdout.isatty()
        width = None if window else _ANY_WIDTH
        super().__init__(width=width, highlight=False, soft_wrap=not window, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, as every other fault of printing."""
        raise

    def fits(self, grid: Table) -> bool:
        """True when no cell of `grid` has to be folded."""
        return self._widths(grid)[1] <= self.width

    def say(self, *lines: str) -> None:
        """Print sentences, each on a line of its own."""
        for line in lines:
            self.print(printable(line, lines=True))

    def draw(self, grid: Table) -> None:
        """Print a table, or each of its rows as a sentence where the window is too narrow for it."""
        if self._widths(grid)[0] > self.width:
            self.print(_told(grid))
            return
        for line in self.render_lines(grid, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            self.print(text, soft_wrap=True)
        self.print()

    def _widths(self, grid: Table) -> tuple[int, int]:
        """Columns that `grid` needs with its words folded, and without."""
        needed = self.measure(grid, options=self.options.update(max_width=_ANY_WIDTH))
        return needed.minimum, needed.maximum


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], right: Sequence[str] = ()) -> Table:
    """A table of these rows; columns named in `right` are right-aligned."""
    grid = Table(title=printable(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    grid.padding, grid.pad_edge = (0, 1, 0, 0), False
    for column in columns:
        grid.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column not in FOLDED
        )
    for row in rows:
        grid.add_row(*(printable(str(cell)) for cell in row))
    return grid


def _told(grid: Table) -> Text:
    """One paragraph a row: `column cell, column cell, …`."""
    lines = [Text(str(grid.title), style="bold")]
    names = [str(column.header) for column in grid.columns]
    for row in zip(*(column.cells for column in grid.columns), strict=True):
        cells = [f"{name} {cell}".strip() for name, cell in zip(names, row, strict=True) if cell]
        lines.append(Text("- " + ", ".join(cells)))
    return Text("\n").join([*lines, Text()])
