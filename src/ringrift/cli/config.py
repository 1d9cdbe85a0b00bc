"""`ringrift config`: every setting and where its value came from."""

from __future__ import annotations

import click

from ringrift.cli.command import as_json, plain_errors, print_json
from ringrift.cli.format import console, print_table
from ringrift.settings import LoadedSettings, Origin, Source, load_settings

WIDE = 140  # columns of a terminal in which all five columns fit without breaking words


@click.group(no_args_is_help=True)
def config() -> None:
    """Look at the settings."""


@config.command("show")
@as_json
def show(as_json: bool) -> None:
    """Print every setting, its value and where the value came from."""
    with plain_errors():
        loaded = load_settings()
    if as_json:
        print_json(_document(loaded))
        return
    columns, rows = (
        ["setting", "value", "from"],
        [[o.key, _text(o.value), _source(o)] for o in loaded.origins],
    )
    if console().width >= WIDE:
        columns += ["variable", "what it is"]
        rows = [[*row, o.variable, o.about] for row, o in zip(rows, loaded.origins, strict=True)]
    print_table("Settings", columns, rows)
    # Not refused: another version of the program, or another program, may read it.
    for name in loaded.unknown_variables:
        click.secho(f"{name} is set, but no setting has that name", fg="yellow", err=True)


def _document(loaded: LoadedSettings) -> dict[str, object]:
    return {
        "settings": {
            o.key: {
                # Programs get numbers and truth values as such; all else is text to them.
                "value": str(o.value)
                if o.value is not None and not isinstance(o.value, bool | int | float)
                else o.value,
                "source": o.source.value,
                "variable": o.variable,
                "place": o.place,
            }
            for o in loaded.origins
        },
        "unknown_variables": list(loaded.unknown_variables),
    }


def _source(origin: Origin) -> str:
    place = origin.variable if origin.source is Source.ENVIRONMENT else origin.place
    return f"{origin.source.value} {place}".strip()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
