"""Options that several commands have, and the data folder that `--data` names."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.settings import Settings, get_settings

PATH = click.Path(path_type=Path)


def use_data_folder(data: Path | None) -> None:
    """Have this process, and those it starts, work on *data*."""
    if data is not None:
        os.environ["RINGRIFT_DATA_DIR"] = str(data)
        process_scope().drop(Settings)


def has_run() -> bool:
    """Whether a run was ever in the data folder. Raises `ConfigError` if there can be none."""
    check_data_folder()
    return get_settings().coordinator_db.exists()


def check_data_folder() -> None:
    """Raise `ConfigError` if a file is where the data folder should be, or nobody may look into it."""
    settings = get_settings()
    folder = settings.data_dir
    try:
        there = next(each for each in (settings.coordination_dir, folder, *folder.parents) if each.exists())
        is_folder, is_open = there.is_dir(), os.access(there, os.X_OK)
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
