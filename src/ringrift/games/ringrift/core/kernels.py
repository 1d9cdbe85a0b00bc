"""Entry points: loops over a batch of games, compiled once for all boards and kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringrift.games.compiled import cached_kernel, source_fingerprint
from ringrift.games.ringrift.core.geometry import Table, cells, directions, farthest
from ringrift.games.ringrift.core.layout import WINNER, Actions, Words
from ringrift.games.ringrift.core.legal import any_decision, legal_moves
from ringrift.games.ringrift.core.moves import make_move, start_game
from ringrift.games.ringrift.core.observe import Planes, observe_state
from ringrift.games.ringrift.core.random_choice import next_random, seed_random
from ringrift.games.ringrift.core.symmetry import turn_action, turn_state

FINGERPRINT = source_fingerprint(Path(__file__).parent)


@cached_kernel(FINGERPRINT)
def start_batch(states: Words, t: Table) -> None:
    for game in range(states.shape[0]):
        start_game(states[game], t)


@cached_kernel(FINGERPRINT)
def legal_batch(states: Words, t: Table, first: int, offsets: Words, out: Actions) -> int:
    """List legal actions from game *first* on; returns the first game that *out* had no room for."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    room = cells(t) * (directions(t) * farthest(t) + 16) + 1
    for game in range(first, states.shape[0]):
        at = offsets[game]
        if out.shape[0] - at < room:
            return game
        offsets[game + 1] = at + legal_moves(states[game], t, out[at:], work)
    return states.shape[0]


@cached_kernel(FINGERPRINT)
def at_decision(state: Words, t: Table) -> bool:
    """Whether a running game stands where somebody has to decide, as after every `apply_batch`."""
    return any_decision(state, t, np.empty(3 * cells(t), dtype=np.int64))


@cached_kernel(FINGERPRINT)
def apply_batch(states: Words, t: Table, actions: Actions, checked: bool) -> int:
    """Apply one action per game; if *checked*, returns the first game whose action is illegal, else -1.

    Nothing has changed if an illegal action is found. Negative actions leave their game alone.
    """
    work = np.empty(3 * cells(t), dtype=np.int64)
    if checked:
        out = np.empty(cells(t) * (directions(t) * farthest(t) + 16) + 1, dtype=np.int32)
        for game in range(states.shape[0]):
            count = legal_moves(states[game], t, out, work)
            found = False
            for at in range(count):
                found |= out[at] == actions[game]
            if not found:
                return game
    for game in range(states.shape[0]):
        make_move(states[game], t, actions[game], work)
    return -1


@cached_kernel(FINGERPRINT)
def play_random_batch(states: Words, t: Table, seed: int, decisions_max: int, totals: Words) -> None:
    """Play every game on with uniformly random actions; adds decisions and options to *totals*."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    out = np.empty(cells(t) * (directions(t) * farthest(t) + 16) + 1, dtype=np.int32)
    for game in range(states.shape[0]):
        state = states[game]
        random = seed_random(seed, game)
        for _ in range(decisions_max):
            if state[WINNER] != 0:
                break
            count = legal_moves(state, t, out, work)
            random = next_random(random)
            make_move(state, t, out[((random >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)], work)
            totals[0] += 1
            totals[1] += count


@cached_kernel(FINGERPRINT)
def observe_batch(states: Words, t: Table, out: Planes) -> None:
    for game in range(states.shape[0]):
        observe_state(states[game], t, out[game])


@cached_kernel(FINGERPRINT)
def turn_batch(states: Words, t: Table, symmetry: int, out: Words) -> None:
    for game in range(states.shape[0]):
        turn_state(states[game], t, symmetry, out[game])


@cached_kernel(FINGERPRINT)
def turn_actions_batch(states: Words, t: Table, symmetry: int, offsets: Words, actions: Actions) -> Actions:
    """Turn the actions of every game, listed flat with *offsets*, as seen from its state before the turn."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    out = np.empty_like(actions)
    for game in range(states.shape[0]):
        for at in range(offsets[game], offsets[game + 1]):
            out[at] = turn_action(states[game], t, actions[at], symmetry, work)
    return out
