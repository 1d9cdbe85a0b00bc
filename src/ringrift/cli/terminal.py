"""Tables and text for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

GAP = 2  # between columns


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, cut: str = "") -> None:
    """A table as wide as the terminal. With *cut*, each row is one line, and that column gives way."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    spare = console().width - sum(widths) - GAP * (len(columns) - 1)
    for column, width in zip(columns, widths, strict=True):
        if not cut:
            table.add_column(column, overflow="fold")
        elif column == cut:
            given = max(len(column), min(width, width + spare))
            table.add_column(column, no_wrap=True, overflow="ellipsis", width=given)
        else:
            table.add_column(column, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    console().print(table)
