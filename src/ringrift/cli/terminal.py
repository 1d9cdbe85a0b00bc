"""Tables and text for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, cut: str = "") -> None:
    """A table as wide as the terminal. With *cut*, each row is one line, and that column gives way."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        if not cut:
            table.add_column(column, overflow="fold")
            continue
        widest = max(len(cell) for cell in (column, *(row[number] for row in rows)))
        kept = len(column) if column == cut else widest
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=kept)
    for row in rows:
        table.add_row(*row)
    console().print(table)
