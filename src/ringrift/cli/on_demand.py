"""Loading what a command needs only when it is called, so that a quick one stays quick."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from ringrift.setting_kinds import is_plain_text

LOGGING = "ringrift.cli.logs:log_to_stderr"
SHOWN_MAX = 200  # of a word that a person typed, in what is said of it
MESSAGE_MAX = 1_000
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
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = self._places.get(cmd_name)
        return None if place is None else place.command()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
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
