"""The `ringrift` command."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from ringrift.cli.logs import log_to_stderr
from ringrift.cli.on_demand import Place, group_of

# Everything behind the kind belongs to the job, also --help.
PASS_ALL_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

COMMANDS = {
    "run": Place("ringrift.cli.run:run"),
    "status": Place("ringrift.cli.status:status"),
    "doctor": Place("ringrift.cli.doctor:doctor"),
    "explain": Place("ringrift.cli.explain:explain"),
    "pause": Place("ringrift.cli.control_commands:pause"),
    "resume": Place("ringrift.cli.control_commands:resume"),
    "stop": Place("ringrift.cli.control_commands:stop"),
    "models": Place("ringrift.cli.models:models_app"),
    "recall": Place("ringrift.cli.recall:recall_app"),
    "replay": Place("ringrift.cli.replay:replay_command"),
    "report": Place("ringrift.cli.report:report"),
    "queue": Place("ringrift.cli.queue:queue_app"),
    "daemons": Place("ringrift.cli.daemons:daemons"),
    "events": Place("ringrift.cli.events:events_app"),
    "config": Place("ringrift.cli.config:config_app"),
    "game": Place("ringrift.cli.game:game_app"),
    "job": Place("ringrift.cli.job:job", PASS_ALL_ON),
    "play": Place("ringrift.cli.job:play", PASS_ALL_ON),
}

app = typer.Typer(
    cls=group_of(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Runs a self-play training cluster by itself.",
)


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
