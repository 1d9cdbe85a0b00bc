"""What every command ends with: JSON for programs, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from ringrift.errors import RingRiftError

EXIT_WRONG_INPUT = 2


def print_json(value: Any) -> None:
    """Print *value* as one JSON document on stdout."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into one line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except RingRiftError as error:
        click.secho(f"ringrift: {error}", err=True, fg="red")
        raise click.exceptions.Exit(EXIT_WRONG_INPUT) from None
