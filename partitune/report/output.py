"""Where tables and sentences are printed: a window of some width, or a pipe.

Decision: rich draws; we add what it leaves out. Lines end without blanks, so that output can be compared and pasted. In
a pipe a row is one line and a sentence is one line, whatever the window. In a window, words fold and figures never do;
where even that is too wide, every row is told as a sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Columns whose cells are words, which may stand on several lines.
FOLDED = ("kinds", "knobs", "reason", "file")
_ANY_WIDTH = 10_000


class Output(Console):
    """Standard output."""

    def __init__(self) -> None:
        window = sys.stdout.isatty()
        super().__init__(width=None if window else _ANY_WIDTH, highlight=False, soft_wrap=not window)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, as every other fault of printing."""
        raise

    def fits(self, grid: Table) -> bool:
        """True when no cell of `grid` has to be folded."""
        return self._widths(grid)[1] <= self.width

    def draw(self, grid: Table) -> None:
        """Print a table."""
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
        found = self.measure(grid, options=self.options.update(max_width=_ANY_WIDTH))
        return found.minimum, found.maximum


def stdout() -> Output:
    """The console that data is printed on."""
    return Output()


def table(title: str, columns: Iterable[str], right: Sequence[str] = ()) -> Table:
    """An empty table; columns named in `right` are right-aligned."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    made.padding, made.pad_edge = (0, 1, 0, 0), False
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column not in FOLDED
        )
    return made


def _told(grid: Table) -> Text:
    """One paragraph a row: `column cell, column cell, …`."""
    lines = [Text.from_markup(str(grid.title or ""), style="bold")]
    names = [str(column.header) for column in grid.columns]
    for row in zip(*(column.cells for column in grid.columns), strict=True):
        cells = [Text.from_markup(str(cell)).plain for cell in row]
        told = [f"{name} {cell}".strip() for name, cell in zip(names, cells, strict=True) if cell]
        lines.append(Text("- " + ", ".join(told)))
    return Text("\n").join([*lines, Text()])
