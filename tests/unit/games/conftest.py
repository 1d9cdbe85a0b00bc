"""Compile once, here, before tests start programs that would each do it again."""

import pytest

from ringrift.games.registry import load_game


@pytest.fixture(scope="session", autouse=True)
def _compiled_rules():
    for key in ("square8_2p", "connect_four_2p"):
        game = load_game(key)
        states = game.new_states(1)
        legal = game.legal(states)
        game.apply(states.copy(), legal.actions[:1])
        game.play_random(states.copy(), seed=0)
        game.observe(states)
        game.from_json(game.to_json(states[0]))
        game.turned(states, 1)
        game.turned_actions(states, legal, 1)
