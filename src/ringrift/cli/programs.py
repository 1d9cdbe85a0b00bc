"""Commands that are programs of their own, started here with everything passed through: `ringrift job`,
`play` and `game`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from ringrift.cli.command import PATH, as_json, plain_errors
from ringrift.errors import ConfigError

# `ringrift job KIND …`: starts a job in a process of its own and passes everything through.
#
# Jobs need the rules and the learner, which this process never loads. Output, signals and the exit code are
# the job's own.


PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Everything behind the kind belongs to the job, also --help.
PASS_ALL_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
KILLED_BY = 128  # plus the number of the signal, as shells tell it


@click.command(context_settings=PASS_ALL_ON)
@click.argument("kind", required=False, help="Kind of job; none lists them.")
@click.pass_context
def job(context: click.Context, kind: str | None) -> None:
    """Run a job: selfplay, validate, export, train, evaluate, tournament, tune, diagnose, play."""
    raise click.exceptions.Exit(run_job([*([kind] if kind else []), *context.args]))


@click.command(context_settings=PASS_ALL_ON)
@click.pass_context
def play(context: click.Context) -> None:
    """Play against a model or a baseline at the terminal, or watch two of them."""
    raise click.exceptions.Exit(run_job(["play", *context.args]))


def run_job(arguments: list[str]) -> int:
    """Run `python -m ringrift.jobs` with *arguments*; returns its exit code."""
    with plain_errors():
        if find_spec("numba") is None:
            raise ConfigError("jobs need the rules and the learner: pip install 'ringrift[train]'")
    # This interpreter, so that the job has the same packages, whatever PATH says.
    return run_through([sys.executable, "-m", "ringrift.jobs", *arguments])


def run_through(argv: list[str]) -> int:
    """Run *argv* on our own stdin, stdout and stderr; returns its exit code."""
    child = subprocess.Popen(argv)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    # Ctrl-C reaches the whole group, a signal from elsewhere only us: the job must get either and end its
    # own way.
    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else KILLED_BY - code


# `ringrift game`: leaf counts, recorded games, positions.
#
# The rules are compiled code that the control process must never load, so each command runs them in a
# process of its own and passes on what that prints and how it ends.


TOOL = "ringrift.games.tool"

NOT_NEGATIVE = click.IntRange(min=0)

of_config = click.option("--config", required=True, metavar="KEY", help="Config key, such as square8_2p.")


@click.group(no_args_is_help=True)
def game() -> None:
    """Rules of the games: counts, records, positions."""


@game.command("perft")
@of_config
@click.option("--depth", type=NOT_NEGATIVE, required=True, metavar="N", help="Number of decisions.")
@as_json
def perft(config: str, depth: int, as_json: bool) -> None:
    """Count the sequences of decisions of a given length from the start."""
    _run_tool("perft", "--config", config, "--depth", str(depth), *_flag("--json", as_json))


@game.command("check-trace")
@click.argument(
    "files",
    type=PATH,
    nargs=-1,
    required=True,
    help="Games, one JSON object a line; may be gzipped.",
)
def check_trace(files: tuple[Path, ...]) -> None:
    """Play recorded games again; ends with 0 only if every legal set and every state agrees."""
    _run_tool("check-trace", "--", *(str(path) for path in files))  # a name of a file may begin with a dash


@game.command("show")
@of_config
@click.option("--state", type=PATH, metavar="FILE", help="A state as JSON; - reads it from stdin.")
@click.option("--moves", default="", help='Moves to make first, such as "P 3,3 2; M 3,3>3,5".')
@click.option("--random", type=NOT_NEGATIVE, default=0, metavar="N", help="Random moves to make after that.")
@click.option("--seed", type=NOT_NEGATIVE, default=0, metavar="N", help="Seed of the random moves.")
@click.option("--legal", is_flag=True, help="List the legal moves.")
@as_json
def show(
    config: str, state: Path | None, moves: str, random: int, seed: int, legal: bool, as_json: bool
) -> None:
    """Draw a position: the start, or what a state file, moves and random moves lead to."""
    given = () if state is None else ("--state", str(state))
    # With an equals sign, because moves may begin with a dash or be empty.
    steps = (f"--moves={moves}", "--random", str(random), "--seed", str(seed))
    _run_tool("show", "--config", config, *given, *steps, *_flag("--legal", legal), *_flag("--json", as_json))


def _flag(name: str, wanted: bool) -> tuple[str, ...]:
    return (name,) if wanted else ()


def _run_tool(*arguments: str) -> None:
    with plain_errors():
        if find_spec("numba") is None:
            raise ConfigError("the rules of the games need numba: pip install 'ringrift[games]'")
    ended = subprocess.run([sys.executable, "-m", TOOL, *arguments], check=False)
    raise click.exceptions.Exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)
