"""What the commands have in common: options that several take, the data folder that `--data` names, JSON
for programs, and errors in one line. Quick commands load it, so it loads little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from ringrift.coordination.coordinator_config import get_settings, reset_settings
from ringrift.errors import ConfigError, ControlLost, RingRiftError, StorageFull
from ringrift.redaction import without_secrets

# Options that several commands have, and the data folder that `--data` names.


PATH = click.Path(path_type=Path)


def use_data_folder(data: Path | None) -> None:
    """Have this process, and those it starts, work on *data*."""
    if data is not None:
        # By the environment, because jobs and workers that this process starts must find the same folder.
        os.environ["RINGRIFT_DATA_DIR"] = str(data)
        reset_settings()  # they may have been read before the option was


def has_run() -> bool:
    """Whether a run was ever in the data folder. Raises `ConfigError` if there can be none."""
    check_data_folder()
    return get_settings().coordinator_db.exists()


def check_data_folder() -> None:
    """Raise `ConfigError` if a file is where the data folder should be, or nobody may look into it."""
    settings = get_settings()
    folder = settings.data_dir
    try:
        # The nearest that exists: what is wrong with it is what is wrong with the folder that is not made
        # yet.
        there = next(each for each in (settings.coordination_dir, folder, *folder.parents) if each.exists())
        is_folder, is_open = there.is_dir(), os.access(there, os.X_OK)
    # `exists` itself fails where a parent may not be looked into.
    except PermissionError:
        there, is_folder, is_open = folder, True, False
    if not is_folder:
        raise ConfigError(f"{folder} cannot be a data folder: {there} is a file; name another with --data")
    if not is_open:
        raise ConfigError(f"{there} may not be read by this user; name another data folder with --data")


def _use(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    use_data_folder(value)


def _here_or_before(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    """`queue --json list` is `queue list --json`."""
    before = {} if context.parent is None else context.parent.params
    return value or bool(before.get("as_json"))


as_json = click.option("--json", "as_json", is_flag=True, callback=_here_or_before, help="Print JSON.")
on_data_folder = click.option(
    "--data",
    type=PATH,
    metavar="DIR",
    callback=_use,
    expose_value=False,
    help="Data folder; the same as RINGRIFT_DATA_DIR.",
)
some_config = click.argument("config", help="A config of the run.")


# What every command ends with: JSON for programs, and errors in one line.


EXIT_WRONG_INPUT = 2
EXIT_CONTROL_LOST = 3  # another process took over while this one was held up
EXIT_DISK_FULL = 4


def print_json(value: Any) -> None:
    """Print *value* as one JSON document on stdout."""
    encoded = msgspec.json.encode(value, enc_hook=str)  # paths, enums, sets: as people would write them
    click.echo(msgspec.json.format(encoded, indent=2).decode())


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into one line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except RingRiftError as error:
        click.secho(f"ringrift: {without_secrets(str(error))}", err=True, fg="red")
        # click would print a traceback of another error
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
