"""What every command ends with: JSON for programs, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from ringrift.errors import ControlLost, RingRiftError, StorageFull
from ringrift.redaction import without_secrets

EXIT_WRONG_INPUT = 2
EXIT_CONTROL_LOST = 3  # another process took over while this one was held up
EXIT_DISK_FULL = 4


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
        click.secho(f"ringrift: {without_secrets(str(error))}", err=True, fg="red")
        raise click.exceptions.Exit(exit_code(error)) from None


def exit_code(error: RingRiftError) -> int:
    """What a script learns of *error*: what passes by itself or by hand is told from wrong input."""
    match error:
        case StorageFull():
            return EXIT_DISK_FULL
        case ControlLost():
            return EXIT_CONTROL_LOST
        case _:
            return EXIT_WRONG_INPUT
