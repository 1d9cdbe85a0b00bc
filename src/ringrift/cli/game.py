"""`ringrift game`: leaf counts, recorded games, positions.

The rules are compiled code that the control process must never load, so each command runs them in a
process of its own and passes on what that prints and how it ends.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ringrift.cli.terminal import plain_errors
from ringrift.errors import ConfigError

TOOL = "ringrift.games.tool"

Config = Annotated[str, typer.Option("--config", help="Config key, such as square8_2p.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

game_app = typer.Typer(no_args_is_help=True, help="Rules of the games: counts, records, positions.")


@game_app.command("perft")
def perft(
    config: Config,
    depth: Annotated[int, typer.Option("--depth", min=0, help="Number of decisions.")],
    as_json: AsJson = False,
) -> None:
    """Count the sequences of decisions of a given length from the start."""
    _run_tool("perft", "--config", config, "--depth", str(depth), *_flag("--json", as_json))


@game_app.command("check-trace")
def check_trace(
    files: Annotated[
        list[Path], typer.Argument(help="Recorded games, one JSON object a line; may be gzipped.")
    ],
) -> None:
    """Play recorded games again; ends with 0 only if every legal set and every state agrees."""
    _run_tool("check-trace", "--", *(str(path) for path in files))


@game_app.command("show")
def show(
    config: Config,
    state: Annotated[Path | None, typer.Option(help="A state as JSON; - reads it from stdin.")] = None,
    moves: Annotated[str, typer.Option(help='Moves to make first, such as "P 3,3 2; M 3,3>3,5".')] = "",
    random: Annotated[int, typer.Option(min=0, help="Random moves to make after that.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random moves.")] = 0,
    legal: Annotated[bool, typer.Option("--legal", help="List the legal moves.")] = False,
    as_json: AsJson = False,
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
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)
