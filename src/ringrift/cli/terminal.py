"""How the commands talk: tables for people, JSON for programs, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ringrift.errors import RingRiftError

EXIT_WRONG_INPUT = 2


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print *value* as one JSON document on stdout."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    typer.echo(msgspec.json.format(encoded, indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into one line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except RingRiftError as error:
        typer.secho(f"ringrift: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_WRONG_INPUT) from None
