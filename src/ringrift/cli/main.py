"""The `ringrift` command."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from ringrift.foreign_files.documents import is_plain_text

# Loading what a command needs only when it is called, so that a quick one stays quick.


LOGGING = "ringrift.cli.logs:log_to_stderr"
SHOWN_MAX = 200  # of a word that a person typed, in what is said of it
MESSAGE_MAX = 1_000  # one that quotes a whole file is cut
EXIT_INTERRUPTED = 130  # as shells tell it of a program that Ctrl-C ended


def load(entry: str) -> Any:
    """What `module:name` names."""
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is, and what is said of it without loading it."""

    entry: str
    about: str
    logs: bool = True  # False: it has nothing to log, and is spared the loading of what does it

    def command(self) -> click.Command:
        if self.logs:
            load(LOGGING)()
        found: click.Command = load(self.entry)
        return found


class OnDemandGroup(click.Group):
    """A group whose commands are those of *places*, in that order. Wrong input is told in one line."""

    def __init__(self, *, places: Mapping[str, Place], **settings: Any) -> None:
        super().__init__(**settings)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (of the interface)
        # Of the table alone: help and completion must not load twenty modules.
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = self._places.get(cmd_name)
        return None if place is None else place.command()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Asked before click does, which would load every command to list those there are.
        if args and args[0] not in self._places and not args[0].startswith("-"):
            raise click.exceptions.NoSuchCommand(args[0], possibilities=list(self._places), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.about) for name, place in self._places.items()])

    def main(  # type: ignore[override]  # narrower than the overloads of the interface
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            _check_words(words)
            # Click's own way of ending prints usage in several lines and hides what `main` returned.
            answer = super().main(words, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            raise SystemExit(error.exit_code) from None
        except click.ClickException as error:
            click.secho(f"ringrift: {_in_one_line(error)}", err=True, fg="red")
            raise SystemExit(error.exit_code) from None
        except click.Abort as abort:
            if isinstance(abort.__cause__, KeyboardInterrupt):
                raise SystemExit(EXIT_INTERRUPTED) from None
            click.echo("Nothing was changed.", err=True)  # a question was not answered with yes
            raise SystemExit(1) from None
        except OSError as error:  # a name that is too long, a folder that is a file, no rights
            place = "" if error.filename is None else f"{_shortened(str(error.filename))}: "
            click.secho(f"ringrift: {place}{error.strerror or error}", err=True, fg="red")
            raise SystemExit(click.UsageError.exit_code) from None
        if not standalone_mode:
            return answer
        raise SystemExit(answer if isinstance(answer, int) else 0)


def _check_words(words: Sequence[str]) -> None:
    """Refuse what could be neither shown nor stored: names of files, configs and reasons are UTF-8 here."""
    for word in words:
        if not is_plain_text(word.replace("\n", " ").replace("\t", " ")):
            raise click.UsageError(
                f"{_shortened(repr(word))} has control characters, or bytes that are not UTF-8"
            )


def _shortened(text: str, *, most: int = SHOWN_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _in_one_line(error: click.ClickException) -> str:
    said = _shortened(" ".join(error.format_message().split()), most=MESSAGE_MAX)
    said = f"{said[:1].lower()}{said[1:]}".rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return said if context is None else f"{said}; `{context.command_path} --help` tells what there is"


COMMANDS = {
    "run": Place("ringrift.cli.run:run", "Learn on this machine until interrupted."),
    "status": Place("ringrift.cli.status:status", "How the run is: stages, ratings, decisions.", logs=False),
    "doctor": Place("ringrift.cli.learning.doctor:doctor", "What is wrong with a run, and what to do."),
    "explain": Place(
        "ringrift.cli.learning.decisions:explain", "Why a config does or does not do something now."
    ),
    "pause": Place("ringrift.cli.control:pause", "Start no jobs."),
    "resume": Place("ringrift.cli.control:resume", "Let what is paused go on."),
    "stop": Place("ringrift.cli.control:stop", "Ask the run to stop, and wait until it has."),
    "link": Place("ringrift.cli.control:link", "A link to the live page that may also act."),
    "models": Place("ringrift.cli.learning.models:models", "The networks of a run: list, show, export."),
    "workers": Place(
        "ringrift.cli.processes:workers", "What each worker brought; set one aside, or resume it."
    ),
    "recall": Place(
        "ringrift.cli.learning.recall:recall", "Take games that are not to be trusted out of a run."
    ),
    "rebuild": Place("ringrift.cli.data.rebuild:rebuild_command", "Make a run again from its sealed files."),
    "replay": Place(
        "ringrift.cli.learning.decisions:replay_command", "Whether every decision follows from the facts."
    ),
    "report": Place("ringrift.cli.learning.models:report", "The run so far as one file to keep or send."),
    "queue": Place("ringrift.cli.control:queue", "The work that waits, runs and failed for good."),
    "tune": Place("ringrift.cli.learning.tune:tune", "Search for better parameters of training."),
    "data": Place("ringrift.cli.data.commands:data", "Files and their copies: list, verify, sync, back up."),
    "daemons": Place("ringrift.cli.processes:daemons", "Every daemon: its state, or why it cannot run."),
    "events": Place("ringrift.cli.events:events", "Look events up, watch them, check their wiring, repair."),
    "engine": Place("ringrift.cli.engine:engine", "The store of many machines: start a server, check one."),
    "config": Place("ringrift.cli.config:config", "Every setting and where its value came from.", logs=False),
    "game": Place(
        "ringrift.cli.programs:game", "Rules of the games: counts, records, positions.", logs=False
    ),
    "job": Place("ringrift.cli.programs:job", "Run one job, such as selfplay or train, by hand.", logs=False),
    "play": Place(
        "ringrift.cli.programs:play", "Play against a model or a baseline at the terminal.", logs=False
    ),
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
