"""`play`: a person at the terminal plays against players, or watches them.

Reads lines from stdin and writes to stdout, so it works in a pipe as well as in a terminal. Every question
is answered by a move, or by a command: `?` lists the legal moves, `undo` takes back, `quit` leaves.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TextIO

import numpy as np

from ringrift.errors import ConfigError, RingRiftError
from ringrift.games.contract import Game, State
from ringrift.games.registry import load_game
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.jobs.kinds import ExitCode, exit_code_of
from ringrift.players.contract import Player, derived
from ringrift.players.specs import FORMS, parse_player
from ringrift.runtime import Runtime, SystemRuntime

HUMAN = "human"
COMMANDS = "a move, ? for the legal moves, ? TEXT for those that start so, board, undo, quit"
RINGRIFT_WORDS = (
    "P cell n: place n rings   M a>b: slide   C a>t>b: overtake t   L full|min cells: line\n"
    "T cells: region   E, F cell: eliminate   R mode a>b: recovery slide\n"
    "SP, SC, SR, ST: skip placement, capture, recovery, territory"
)
COLUMN, LINE = 24, 96  # characters of a move in a list, and of a line of them
SUGGESTIONS = 3


class Quit(Exception):
    """The person leaves, or there is no more input."""


class Session:
    """One game at one terminal; *players* holds None in the person's seats."""

    def __init__(
        self,
        game: Game,
        players: Sequence[Player | None],
        *,
        seed: int,
        source: TextIO,
        out: TextIO,
        boards: bool,
    ) -> None:
        self._game, self._players, self._seed = game, players, seed
        self._source, self._out, self._boards = source, out, boards
        self._state: State = game.new_states(1)[0]
        self._history: list[State] = []  # before every decision of a person
        self._decisions = 0

    def run(self) -> None:
        """Play to the end; raises `Quit`."""
        drawn = False
        while not self._game.terminal(self._state[None, :])[0]:
            seat = int(self._game.to_move(self._state[None, :])[0])
            player = self._players[seat]
            if player is None:
                self._ask(seat, drawn=drawn)
                drawn = False
            else:
                self._let_play(seat, player)
                drawn = self._boards and all(other is not None for other in self._players)
                if drawn:
                    self._say(self._game.draw(self._state))
        if not drawn:
            self._say(self._game.draw(self._state))
        self._say(self._ending())

    def _let_play(self, seat: int, player: Player) -> None:
        seeds = derived(self._seed, self._decisions)
        self._play(seat, player.name, int(player.choose(self._state[None, :], seeds)[0]))

    def _play(self, seat: int, name: str, action: int) -> None:
        (text,) = self._game.action_texts(self._state, [action])
        states = self._state[None, :].copy()
        self._game.apply(states, np.array([action], dtype=np.int32))
        self._state = states[0]
        self._decisions += 1
        self._say(f"player {seat + 1} ({name}): {text}")

    def _ask(self, seat: int, *, drawn: bool) -> None:
        """Have the person decide once."""
        actions = self._game.legal(self._state[None, :]).actions
        texts = self._game.action_texts(self._state, actions)
        # A forced move is no decision, and taking one back would only force it again.
        if len(actions) == 1:
            self._play(seat, "you, the only move", int(actions[0]))
            return
        if not drawn:
            self._say(self._game.draw(self._state))
        while True:
            line = self._read(f"player {seat + 1}, {len(actions)} moves> ")
            word, _, rest = line.partition(" ")
            if word in ("?", "help"):
                self._list(texts, rest.strip())
            elif word == "board":
                self._say(self._game.draw(self._state))
            elif word == "undo":
                if self._undo():
                    return
                self._say("there is nothing of yours to take back")
            elif word in ("quit", "exit"):
                raise Quit
            elif line in texts:
                # states are never changed in place, so keeping one costs no copy
                self._history.append(self._state)
                self._play(seat, "you", int(actions[texts.index(line)]))
                return
            else:
                self._explain(line, texts)

    def _read(self, prompt: str) -> str:
        self._out.write(prompt)
        self._out.flush()
        line = self._source.readline()
        if not line:
            self._say("")
            raise Quit
        if not self._source.isatty():
            self._say(line.rstrip("\n"))  # so that a transcript of a pipe shows what was answered
        return " ".join(line.split())

    def _undo(self) -> bool:
        if not self._history:
            return False
        self._state = self._history.pop()
        self._say("taken back to your last decision")
        return True

    def _list(self, texts: list[str], start: str) -> None:
        chosen = [text for text in texts if text.lower().startswith(start.lower())]
        width = max([COLUMN, *(len(text) + 2 for text in chosen)])
        per_line = max(1, LINE // width)
        for at in range(0, len(chosen), per_line):
            self._say("".join(text.ljust(width) for text in chosen[at : at + per_line]).rstrip())
        self._say(f"{len(chosen)} of {len(texts)} legal moves. You may enter {COMMANDS}.")
        if isinstance(self._game, RingRiftGame):
            self._say(RINGRIFT_WORDS)

    def _explain(self, line: str, texts: list[str]) -> None:
        if not line:
            self._say(f"Enter {COMMANDS}.")
            return
        # some help even for what looks like no move at all
        near = get_close_matches(line, texts, n=SUGGESTIONS, cutoff=0.5) or texts[:SUGGESTIONS]
        self._say(
            f"{line!r} is not a legal move here. Legal ones are such as: {', '.join(near)}. ? lists all."
        )

    def _ending(self) -> str:
        ranks = self._game.rankings(self._state[None, :])[0]
        names = [HUMAN if player is None else player.name for player in self._players]
        standing = [f"player {seat + 1} ({names[seat]}) is {rank}." for seat, rank in enumerate(ranks)]
        draw = "A draw. " if (ranks == 1).all() else ""
        return f"Game over after {self._decisions} decisions. {draw}Ranks: {' '.join(standing)}"

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def main(
    argv: Sequence[str],
    *,
    source: TextIO | None = None,
    out: TextIO | None = None,
    runtime: Runtime | None = None,
) -> int:
    """Play the game that *argv* describes."""
    runtime = runtime if runtime is not None else SystemRuntime()
    source, out = source if source is not None else sys.stdin, out if out is not None else sys.stdout
    options = _parser().parse_args(argv)
    # printed, so that a game can be played again
    seed = runtime.rng.getrandbits(62) if options.seed is None else options.seed
    try:
        session = _session(
            options.config, options.seats, seed=seed, source=source, out=out, boards=options.boards
        )
        out.write(f"{options.config}, seed {seed}: {', '.join(options.seats)}\n")
        session.run()
    except Quit:
        out.write("Left the game.\n")
    except KeyboardInterrupt:
        out.write("\nLeft the game.\n")
    except BrokenPipeError:  # whoever read the transcript has seen enough
        # Or Python would fail once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except RingRiftError as error:
        sys.stderr.write(f"play: {error}\n")
        return exit_code_of(error)
    return ExitCode.DONE


def _session(
    config: str, seats: Sequence[str], *, seed: int, source: TextIO, out: TextIO, boards: bool
) -> Session:
    game = load_game(config)
    if len(seats) != game.players:
        raise ConfigError(f"{config} has {game.players} seats, but {len(seats)} players are named")
    if seed < 0:
        raise ConfigError(f"the seed must not be negative: {seed}")
    players = [None if text == HUMAN else parse_player(text, game) for text in seats]
    return Session(game, players, seed=seed, source=source, out=out, boards=boards)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringrift play", description="Play a game in the terminal, or watch one.", allow_abbrev=False
    )
    parser.add_argument("--config", default="square8_2p", help="the game [square8_2p]")
    parser.add_argument(
        "--seats",
        nargs="+",
        default=[HUMAN, "heuristic"],
        metavar="PLAYER",
        help=f"who sits where: {HUMAN}, {FORMS} [{HUMAN} heuristic]",
    )
    parser.add_argument("--seed", type=int, default=None, help="play the same game again")
    parser.add_argument(
        "--boards",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draw the board after every move that is watched",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
