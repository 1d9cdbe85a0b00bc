"""The `ringrift` command."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from ringrift.cli.config import config_app
from ringrift.cli.daemons import daemons
from ringrift.cli.events import events_app
from ringrift.cli.game import game_app
from ringrift.cli.job import JOB_SETTINGS, job, play
from ringrift.cli.logs import log_to_stderr
from ringrift.cli.run import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Runs a self-play training cluster by itself.",
)
app.command("run")(run)
app.command("daemons")(daemons)
app.add_typer(events_app, name="events")
app.add_typer(config_app, name="config")
app.add_typer(game_app, name="game")
app.command("job", context_settings=JOB_SETTINGS)(job)
app.command("play", context_settings=JOB_SETTINGS)(play)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("ringrift"))
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Runs a self-play training cluster by itself."""
    log_to_stderr()
