"""A table that grows: redrawn on a terminal, and elsewhere one line for each new row."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

ROWS = 20
"""The most rows that a terminal shows, the newest last."""

MARGIN = 6
"""Lines of a terminal that stay free of rows."""


class LiveTable:
    """The last rows of a table on ``console`` if that is a terminal; elsewhere every row once, under a header.

    ``widths`` are those of the columns elsewhere, where later rows are unknown.
    """

    def __init__(self, console: Console, header: Sequence[str], widths: Sequence[int]) -> None:
        self._console, self._header, self._widths = console, header, widths
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._said = False

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[Sequence[str]], new: int, note: str) -> None:
        """Draw the last of all ``rows`` and a ``note`` below them. Elsewhere, write the last ``new`` rows alone."""
        if self._live is not None:
            self._live.update(Group(self._table(rows), Text(note)), refresh=True)
            return
        for row in rows[len(rows) - new :]:
            if not self._said:
                self._print(self._header)
            self._said = True
            self._print(row)

    def say(self, line: str) -> None:
        """Write a line, above the table on a terminal."""
        self._console.print(line, markup=False, soft_wrap=True, highlight=False)

    def _print(self, cells: Sequence[str]) -> None:
        self.say("  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)))

    def _table(self, rows: Sequence[Sequence[str]]) -> Table:
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        for name in self._header:
            table.add_column(name, justify="right")
        for row in rows[-max(1, min(ROWS, self._console.height - MARGIN)) :]:
            table.add_row(*map(escape, row))
        return table
