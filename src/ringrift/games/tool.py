"""The program behind `ringrift game`: `python -m ringrift.games.tool perft|check-trace|show`.

A process of its own, so that the command line starts without the compiled rules. Exit codes: 0 all is
well, 1 a record disagrees with the rules, 2 wrong input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringrift.errors import ConfigError, Corrupt, RingRiftError
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.games.contract import Game, State, States
from ringrift.games.registry import load_game
from ringrift.games.ringrift.trace import check_trace_files

# Leaf counts: how many sequences of decisions of a given length there are.


BATCH_MAX = 4096  # states held at once per level of depth


def count_leaves(game: Game, depth: int) -> int:
    """Number of positions after *depth* decisions from the start, counted once per way to reach them.

    A game that ends earlier has no leaf.
    """
    if depth < 0:
        raise ConfigError(f"depth must not be negative, not {depth}")
    return _count(game, game.new_states(1), depth)


def _count(game: Game, states: States, depth: int) -> int:
    if depth == 0:
        return len(states)
    legal = game.legal(states)
    if depth == 1:
        return len(legal.actions)
    parents = np.repeat(np.arange(len(states)), legal.counts)
    total = 0
    for start in range(0, len(parents), BATCH_MAX):
        chosen = slice(start, start + BATCH_MAX)
        children = states[parents[chosen]]
        game.apply(children, legal.actions[chosen], trusted=True)
        total += _count(game, children, depth - 1)
    return total


EXIT_DIFFERENT, EXIT_WRONG_INPUT = 1, 2
STATE_BYTES_MAX = 4_000_000


def perft(arguments: argparse.Namespace) -> int:
    game = load_game(arguments.config)
    leaves = count_leaves(game, arguments.depth)
    if arguments.json:
        _say(json.dumps({"config": game.key, "depth": arguments.depth, "leaves": leaves}))
    else:
        _say(f"{game.key}: {leaves} leaves at depth {arguments.depth}")
    return 0


def check_trace(arguments: argparse.Namespace) -> int:
    exit_code = 0
    for path, report in check_trace_files(arguments.files):
        if isinstance(report, RingRiftError):
            exit_code = EXIT_WRONG_INPUT
            _say(f"{path}: {str(report).removeprefix(f'{path}: ')}")
        elif report.difference is not None:
            exit_code = exit_code or EXIT_DIFFERENT
            _say(f"{path}: DIFFERS in {report.difference}")
        else:
            _say(f"{path}: {report.games} games, {report.steps} steps agree")
    return exit_code


def show(arguments: argparse.Namespace) -> int:
    game = load_game(arguments.config)
    state = _shown_state(game, arguments)
    actions = game.legal(state[None, :]).actions
    texts = game.action_texts(state, actions)
    if arguments.json:
        _say(json.dumps({**game.to_json(state), "legal": texts}))
        return 0
    _say(game.draw(state))
    if arguments.legal:
        _say(f"\n{len(texts)} legal: " + ", ".join(sorted(texts)))
    return 0


def _shown_state(game: Game, arguments: argparse.Namespace) -> State:
    state = game.new_states(1)[0] if arguments.state is None else game.from_json(_read_json(arguments.state))
    moves = [text.strip() for text in arguments.moves.split(";")] if arguments.moves else []
    for text in moves:
        action = game.parse_action(state, text)
        game.apply(state[None, :], np.array([action], dtype=np.int32))
    random = np.random.default_rng(arguments.seed)
    for _ in range(arguments.random):
        actions = game.legal(state[None, :]).actions
        if not len(actions):
            break
        game.apply(state[None, :], random.choice(actions, size=1))
    return state


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if str(path) == "-":
            text = sys.stdin.buffer.read(STATE_BYTES_MAX + 1)
        else:
            text = read_regular(path, bytes_max=STATE_BYTES_MAX)
        fields = parse_json(text)
    except (OSError, Corrupt, NoDocument) as fault:
        raise ConfigError(f"{path}: no state: {fault}") from fault
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: a state is a JSON object")
    return fields


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ringrift game", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    leaves = commands.add_parser("perft", allow_abbrev=False)
    leaves.set_defaults(command=perft)
    leaves.add_argument("--config", required=True)
    leaves.add_argument("--depth", type=int, required=True)
    leaves.add_argument("--json", action="store_true")
    traces = commands.add_parser("check-trace", allow_abbrev=False)
    traces.set_defaults(command=check_trace)
    traces.add_argument("files", nargs="+", type=Path)
    picture = commands.add_parser("show", allow_abbrev=False)
    picture.set_defaults(command=show)
    picture.add_argument("--config", required=True)
    picture.add_argument("--state", type=Path)
    picture.add_argument("--moves", default="")
    picture.add_argument("--random", type=int, default=0)
    picture.add_argument("--seed", type=int, default=0)
    picture.add_argument("--legal", action="store_true")
    picture.add_argument("--json", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        exit_code: int = arguments.command(arguments)
    except RingRiftError as error:
        sys.stderr.write(f"ringrift: {error}\n")
        return EXIT_WRONG_INPUT
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
