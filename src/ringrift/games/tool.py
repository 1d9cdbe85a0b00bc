"""The program behind `ringrift game`: `python -m ringrift.games.tool perft|check-trace|show`.

A process of its own, so that the command line starts without the compiled rules. Exit codes: 0 all is
well, 1 a record disagrees with the rules, 2 wrong input.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ringrift.errors import ConfigError, Corrupt, RingRiftError
from ringrift.foreign_files.documents import NoDocument, parse_json, printable
from ringrift.foreign_files.paths import open_regular, read_regular
from ringrift.games.contract import Game, State, States
from ringrift.games.registry import load_game
from ringrift.games.ringrift.boards import board_for
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.game import RingRiftGame

# --- recorded games -----------------------------------------------------------------------------------
#
# Checking recorded games: every legal set and every state, step by step.
#
# The recording engine made some choices of a recovery by a fixed rule, where the rules leave them to the
# player. So a recovery step agrees if some choice of the decisions that follow gives the recorded state, and
# a forced elimination may have been recorded with a single stack.


OVER_FIELDS = ("status", "winner", "players", "stacks", "markers", "collapsed")
STATE_FIELDS = ("cur", "phase", *OVER_FIELDS)
SHOWN_MAX = 5
GAME_BYTES_MAX = 32 << 20  # one line
BYTES_FREE, BYTES_PER_PACKED_BYTE = 64 << 20, 200


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a record and the rules part."""

    game: int  # line of the file, from 1
    step: int  # from 0; -1 is the start
    what: str

    def __str__(self) -> str:
        where = "start" if self.step < 0 else f"step {self.step}"
        return f"game {self.game}, {where}: {printable(self.what)}"


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was checked in one file."""

    games: int
    steps: int
    difference: Difference | None


def check_trace_file(path: Path) -> TraceReport:
    """Check every game of *path* up to the first difference; raises `Corrupt` if it cannot be read."""
    games = steps = 0
    for number, record in enumerate(_records(path), start=1):
        try:
            checked, difference = _check_game(number, record)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as fault:
            found = f"game {number} is no trace: {type(fault).__name__} {printable(str(fault))}"
            raise Corrupt(path, found=found, advice="The file is not in the format of traces") from fault
        games, steps = games + 1, steps + checked
        if difference is not None:
            return TraceReport(games, steps, difference)
    if not games:
        raise Corrupt(path, found="it holds no game", advice="Check that it was copied whole")
    return TraceReport(games, steps, None)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            for number, line in enumerate(_lines(file), start=1):
                if line.strip():
                    try:
                        yield parse_json(line)
                    except NoDocument as fault:
                        raise NoDocument(f"game {number}: {fault}") from None
    except (OSError, EOFError, zlib.error, NoDocument) as fault:
        raise Corrupt(path, found=f"unreadable: {fault}", advice="Check that it was copied whole") from fault


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, which may be gzipped: none is endless, and its size bounds them all."""
    packed = file.read(2) == b"\x1f\x8b"
    left = BYTES_FREE + BYTES_PER_PACKED_BYTE * file.seek(0, os.SEEK_END)
    file.seek(0)
    lines = gzip.GzipFile(fileobj=file) if packed else file
    while line := lines.readline(GAME_BYTES_MAX + 1):
        left -= len(line)
        if left < 0 or len(line) > GAME_BYTES_MAX:
            raise NoDocument("it unpacks to more than a file of its size may, or a line has no end")
        yield line


def _check_game(number: int, record: Mapping[str, Any]) -> tuple[int, Difference | None]:
    game = RingRiftGame(board_for(record["board"], record["n"]))
    state = game.from_json({field: record["init"][field] for field in STATE_FIELDS if field != "status"})
    what = _state_difference(game, state, record["init"])
    if what:
        return 0, Difference(number, -1, what)
    for at_step, step in enumerate(record["steps"]):
        if "stuck" in step:
            return at_step, None
        checked = _check_step(game, state, step)
        if isinstance(checked, str):
            return at_step, Difference(number, at_step, checked)
        state = checked
    winner = int(state[at.WINNER]) or None
    if record.get("winner", winner) != winner:  # the last state says it too
        what = f"winner: the record says {record['winner']}, the rules {winner}"
        return len(record["steps"]), Difference(number, len(record["steps"]) - 1, what)
    return len(record["steps"]), None


def _check_step(game: RingRiftGame, state: State, step: Mapping[str, Any]) -> State | str:
    """The state after the step, or what differs."""
    player, phase = int(state[at.CUR]), at.PHASE_NAMES[state[at.PHASE]]
    if (step["p"], step["ph"]) != (player, phase):
        return f"the record has player {step['p']} in {step['ph']}, the rules player {player} in {phase}"
    actions = game.legal(state[None, :]).actions
    ours = dict(zip(game.action_texts(state, actions), actions, strict=True))
    what = _legal_difference(set(ours), {_normal(text) for text in step["legal"]}, phase)
    if what:
        return what
    move = _normal(step["mv"])
    if move not in ours:
        return f"the recorded move {step['mv']!r} is not legal"
    after = _after(game, state, int(ours[move]))
    if move.startswith("R "):
        return _settle_recovery(game, after, step)
    what = _state_difference(game, after, step["fp"])
    return f"after {step['mv']!r}: {what}" if what else after


def _legal_difference(ours: set[str], recorded: set[str], phase: str) -> str:
    if phase == "forced_elimination" and len(recorded) == 1 and recorded <= ours:
        return ""
    missing, extra = sorted(recorded - ours), sorted(ours - recorded)
    parts = []
    if missing:
        parts.append(f"only the record allows {', '.join(missing[:SHOWN_MAX])} ({len(missing)} in all)")
    if extra:
        parts.append(f"only the rules allow {', '.join(extra[:SHOWN_MAX])} ({len(extra)} in all)")
    return f"legal moves in {phase}: {'; '.join(parts)}" if parts else ""


def _settle_recovery(game: RingRiftGame, after: State, step: Mapping[str, Any]) -> State | str:
    """Try every choice of the decisions that complete the recovery."""
    open_states, first_difference = [after], ""
    while open_states:
        state = open_states.pop()
        if state[at.DEBT] in (at.RECOVERY_LINE, at.RECOVERY_DEBT):
            open_states += (_after(game, state, int(action)) for action in game.legal(state[None, :]).actions)
            continue
        what = _state_difference(game, state, step["fp"])
        if not what:
            return state
        first_difference = first_difference or what
    return f"after {step['mv']!r}: no choice that follows gives the recorded state; one: {first_difference}"


def _after(game: RingRiftGame, state: State, action: int) -> State:
    after = state.copy()
    game.apply(after[None, :], np.array([action], dtype=np.int32), trusted=True)
    return after


def _state_difference(game: RingRiftGame, state: State, recorded: Mapping[str, Any]) -> str:
    ours = game.to_json(state)
    fields = OVER_FIELDS if ours["status"] == recorded["status"] == "completed" else STATE_FIELDS
    for field in fields:
        if ours[field] != recorded[field]:
            return _field_difference(field, ours[field], recorded[field])
    return ""


def _field_difference(field: str, ours: Any, recorded: Any) -> str:
    if isinstance(ours, dict) and isinstance(recorded, dict):
        for name in sorted(ours.keys() | recorded.keys()):
            if ours.get(name) != recorded.get(name):
                ours, recorded, field = ours.get(name), recorded.get(name), f"{field} at {name}"
                break
    return f"{field}: the record says {recorded}, the rules {ours}"


def _normal(text: str) -> str:
    """A move's text as this engine writes it: no choice of a recovery's option, cells in order."""
    words = text.split()
    if words[0] == "R":
        words = words[:3]
    if words[0] in ("L", "T"):
        words[-1] = "|".join(sorted(words[-1].split("|")))
    return " ".join(words)


def check_trace_files(paths: list[Path]) -> Iterator[tuple[Path, TraceReport | RingRiftError]]:
    """Check file by file; a file that cannot be checked gives its error instead of a report."""
    for path in paths:
        try:
            yield path, check_trace_file(path)
        except (ConfigError, Corrupt) as fault:
            yield path, fault


# --- the program --------------------------------------------------------------------------------------


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
    shown = commands.add_parser("show", allow_abbrev=False)
    shown.set_defaults(command=show)
    shown.add_argument("--config", required=True)
    shown.add_argument("--state", type=Path)
    shown.add_argument("--moves", default="")
    shown.add_argument("--random", type=int, default=0)
    shown.add_argument("--seed", type=int, default=0)
    shown.add_argument("--legal", action="store_true")
    shown.add_argument("--json", action="store_true")
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
