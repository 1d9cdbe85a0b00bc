"""States and moves as people see them: JSON and text both ways, drawings, replays."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.contract import Replay, state_digest, validate_replay
from ringrift.games.ringrift.game import make_game

GAMES = {
    key: make_game(key)
    for key in ("square8_2p", "square8_4p", "hex8_3p", "square19_2p", "hexagonal_4p", "hexagonal_2p")
}


def random_game(game, seed, moves):
    """States before each action, and the actions."""
    random, state, actions, states = np.random.default_rng(seed), game.new_states(1), [], []
    for _ in range(moves):
        legal = game.legal(state).actions
        if not len(legal):
            break
        states.append(state[0].copy())
        actions.append(int(random.choice(legal)))
        game.apply(state, np.array(actions[-1:], dtype=np.int32))
    return [*states, state[0]], actions


@settings(max_examples=20, deadline=None)
@given(key=st.sampled_from(sorted(GAMES)), seed=st.integers(0, 2**32), moves=st.integers(0, 160))
def test_a_state_survives_json_and_every_move_its_text(key, seed, moves):
    game = GAMES[key]
    state = random_game(game, seed, moves)[0][-1]
    again = game.from_json(json.loads(json.dumps(game.to_json(state))))
    assert (again == state).all()
    actions = game.legal(state[None, :]).actions
    texts = game.action_texts(state, actions)
    for action, text in list(zip(actions, texts, strict=True))[:: max(1, len(texts) // 5)]:
        assert game.parse_action(state, f"  {text} ") == action


def test_a_stack_as_tall_as_the_largest_board_allows_keeps_every_ring():
    game = GAMES["hexagonal_4p"]
    fields = game.to_json(game.new_states(1)[0])
    rings = [1, 2, 3, 4] * 6 + [4]
    fields["stacks"] = {"0,0,0": rings}
    for seat in range(1, 5):
        fields["players"][seat - 1][0] -= rings.count(seat)
    state = game.from_json(fields)
    assert game.to_json(state) == fields
    drawn = game.draw(state)
    assert "4:25" in drawn
    assert f"mixed stacks, bottom ring first: 0,0,0 {''.join(map(str, rings))}" in drawn


def test_wrong_text_is_refused_with_examples():
    game = GAMES["square8_2p"]
    with pytest.raises(IllegalAction, match=r"not among the 192 legal ones \(P 0,0 1"):
        game.parse_action(game.new_states(1)[0], "M 0,0>0,1")


def two_things(fields):
    fields["markers"]["0,0"] = 1
    fields["collapsed"]["0,0"] = 1
    fields["players"][0][2] = 1


def foreign_cell(fields):
    fields["markers"]["8,8"] = 1


def foreign_player(fields):
    fields["markers"]["1,1"] = 3


def ring_from_nowhere(fields):
    fields["stacks"]["1,1"] = [1]


def too_many_rings(fields):
    fields["players"][0][0] = 19


def credit_from_nowhere(fields):
    fields["players"][0][1] = 2


def wrong_territory(fields):
    fields["players"][0][2] = 2


def no_stack_to_chain(fields):
    fields["phase"] = "chain_capture"


def foreign_phase(fields):
    fields["phase"] = "opening"


def winner_of_a_running_game(fields):
    fields["winner"] = 1


def movement_without_a_stack(fields):
    fields["phase"] = "movement"


def debt_without_a_stack(fields):
    fields["turn"]["debt"] = "territory"


def recovery_line_without_a_line(fields):
    fields["markers"]["2,2"] = 1
    fields["turn"].update(active="2,2", debt="recovery_line")


def other_board(fields):
    fields["config"] = "hex8_2p"


def no_stacks(fields):
    del fields["stacks"]


def empty_stack(fields):
    fields["stacks"]["1,1"] = []


@pytest.mark.parametrize(
    "change",
    [
        two_things,
        foreign_cell,
        foreign_player,
        ring_from_nowhere,
        too_many_rings,
        credit_from_nowhere,
        wrong_territory,
        no_stack_to_chain,
        foreign_phase,
        winner_of_a_running_game,
        movement_without_a_stack,
        debt_without_a_stack,
        recovery_line_without_a_line,
        other_board,
        no_stacks,
        empty_stack,
    ],
)
def test_a_state_that_no_game_reaches_is_refused(change):
    game = GAMES["square8_2p"]
    fields = game.to_json(game.new_states(1)[0])
    change(fields)
    with pytest.raises(ConfigError):
        game.from_json(fields)


@pytest.mark.parametrize("key", sorted(GAMES))
def test_a_drawing_shows_every_cell_and_fits_its_rows(key):
    game = GAMES[key]
    state = random_game(game, 5, 60)[0][-1]
    fields, lines = game.to_json(state), game.draw(state).splitlines()
    rows = lines[2 : 2 + game.board.grid_side + 2 * (not game.board.shape.hexagonal)]
    board = "\n".join(re.sub(r"^y.*? to +-?\d+", "", row) for row in rows)
    assert board.count("o") == len(fields["markers"])
    assert board.count("#") == len(fields["collapsed"])
    assert board.count(":") == len(fields["stacks"])
    occupied = sum(len(fields[table]) for table in ("stacks", "markers", "collapsed"))
    assert board.count(".") == game.board.cells - occupied
    assert f"player {fields['cur']}" in lines[0]


def recorded(game, seed):
    states, actions = random_game(game, seed, 500)
    return Replay(
        actions=actions,
        seats=[int(state[0]) - 1 for state in states[:-1]],
        digests=[state_digest(state) for state in states[1:]],
        ranking=game.rankings(states[-1][None, :])[0].tolist(),
    )


def changed(replay, **fields):
    kept = {name: getattr(replay, name) for name in ("actions", "seats", "digests", "ranking")}
    return Replay(**{**kept, **fields})


@pytest.mark.parametrize("key", ["square8_2p", "hex8_3p"])
def test_a_replay_holds_or_says_where_it_breaks(key):
    game = GAMES[key]
    replay = recorded(game, 9)
    report = validate_replay(game, replay)
    assert report.divergence is None
    assert report.moves == len(replay.actions)

    illegal = [*replay.actions[:20], game.action_count - 1, *replay.actions[21:]]
    illegal[20] = next(
        a
        for a in range(game.action_count)
        if a
        not in game.legal(validate_replay(game, Replay(actions=replay.actions[:20])).state[None, :]).actions
    )
    found = validate_replay(game, changed(replay, actions=illegal)).divergence
    assert found.move == 20
    assert "illegal action" in str(found)

    seats = list(replay.seats)
    seats[7] = (seats[7] + 1) % game.players
    assert "move 7: seat" in str(validate_replay(game, changed(replay, seats=seats)).divergence)

    digests = list(replay.digests)
    digests[11] = "0" * 16
    assert "move 11: the state after" in str(
        validate_replay(game, changed(replay, digests=digests)).divergence
    )

    wrong_ranking = list(reversed(replay.ranking))
    assert "ranking" in validate_replay(game, changed(replay, ranking=wrong_ranking)).divergence.what
    cut = changed(replay, actions=replay.actions[:-1])
    assert "not over" in validate_replay(game, cut).divergence.what
    longer = changed(replay, actions=[*replay.actions, 0], seats=None, digests=None)
    assert validate_replay(game, longer).divergence.move == len(replay.actions)
