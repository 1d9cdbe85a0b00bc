"""Tables and text for people at a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Collection[str] = ()
) -> None:
    """A table as wide as the terminal. The columns named by *whole* are cut rather than broken."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column in whole:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
