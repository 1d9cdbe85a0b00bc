"""The `ringrift` command."""

from __future__ import annotations

import click

from ringrift.cli.on_demand import OnDemandGroup, Place, load

COMMANDS = {
    "run": Place("ringrift.cli.run:run", "Learn on this machine until interrupted."),
    "status": Place("ringrift.cli.status:status", "How the run is: stages, ratings, decisions.", logs=False),
    "doctor": Place("ringrift.cli.doctor:doctor", "What is wrong with a run, and what to do."),
    "explain": Place("ringrift.cli.explain:explain", "Why a config does or does not do something now."),
    "pause": Place("ringrift.cli.control_commands:pause", "Start no jobs."),
    "resume": Place("ringrift.cli.control_commands:resume", "Let what is paused go on."),
    "stop": Place("ringrift.cli.control_commands:stop", "Ask the run to stop, and wait until it has."),
    "link": Place("ringrift.cli.control:link", "A link to the live page that may also act."),
    "models": Place("ringrift.cli.models:models", "The networks of a run: list, show, export."),
    "workers": Place(
        "ringrift.cli.workers:workers", "What each worker brought; set one aside, or resume it."
    ),
    "recall": Place("ringrift.cli.recall:recall", "Take games that are not to be trusted out of a run."),
    "rebuild": Place("ringrift.cli.rebuild:rebuild_command", "Make a run again from its sealed files."),
    "replay": Place("ringrift.cli.replay:replay_command", "Whether every decision follows from the facts."),
    "report": Place("ringrift.cli.report:report", "The run so far as one file to keep or send."),
    "queue": Place("ringrift.cli.queue:queue", "The work that waits, runs and failed for good."),
    "tune": Place("ringrift.cli.tuning_command:tune", "Search for better parameters of training."),
    "data": Place("ringrift.cli.data_commands:data", "Files and their copies: list, verify, sync, back up."),
    "daemons": Place("ringrift.cli.daemons:daemons", "Every daemon: its state, or why it cannot run."),
    "events": Place("ringrift.cli.events:events", "Watch events, check their wiring, repair."),
    "config": Place("ringrift.cli.config:config", "Every setting and where its value came from.", logs=False),
    "game": Place("ringrift.cli.game:game", "Rules of the games: counts, records, positions.", logs=False),
    "job": Place("ringrift.cli.job:job", "Run one job, such as selfplay or train, by hand.", logs=False),
    "play": Place("ringrift.cli.job:play", "Play against a model or a baseline at the terminal.", logs=False),
}


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(load("importlib.metadata:version")("ringrift"))
        context.exit()


app = OnDemandGroup(
    name="ringrift",
    places=COMMANDS,
    no_args_is_help=True,
    help="Runs a self-play training cluster by itself.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
)
