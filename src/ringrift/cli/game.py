"""`ringrift game`: leaf counts, recorded games, positions.

The rules are compiled code that the control process must never load, so each command runs them in a
process of its own and passes on what that prints and how it ends.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ringrift.cli.answers import plain_errors
from ringrift.cli.options import PATH, as_json
from ringrift.errors import ConfigError

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
    _run_tool("check-trace", "--", *(str(path) for path in files))


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
