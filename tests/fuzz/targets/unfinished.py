"""Files of unfinished games: any bytes, and real files with changed fields, are played again or refused."""

import json
import tempfile
from pathlib import Path

import numpy as np
from tests.fuzz.mutation import mutated_json

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.registry import load_game
from ringrift.jobs.selfplay.selfplay import (
    PlayedTurn,
    UnfinishedGame,
    game_id_of,
    read_unfinished,
    seal_unfinished,
)
from ringrift.search.records import GameInProgress, MoveRecord

CONFIG, RUN = "connect_four_2p", "0123456789abcdef"
GAME = load_game(CONFIG)
FILE = Path(tempfile.mkdtemp()) / "x.unfinished.json"


def in_progress(seed: int, moves: int) -> UnfinishedGame:
    rng, states = np.random.default_rng(seed), GAME.new_states(1)
    progress = GameInProgress(seed, states[0])
    for number in range(moves):
        legal = GAME.legal(states).actions
        progress.moves.append(
            MoveRecord(
                seat=int(GAME.to_move(states)[0]),
                action=int(rng.choice(legal)),
                legal=legal,
                policy=rng.dirichlet(np.ones(len(legal))).astype(np.float32),
                root_values=rng.uniform(-1, 1, 2).astype(np.float32),
                simulations=4,
                full=number % 2 == 0,
            )
        )
        GAME.apply(states, np.array([progress.moves[-1].action], dtype=np.int32))
    return UnfinishedGame(
        game_id=game_id_of(CONFIG, RUN, seed),
        run_id=RUN,
        run_index=seed,
        seed=seed,
        started_s=1e9,
        turns=(
            PlayedTurn(run_id=RUN, model=None, from_move=0),
            PlayedTurn(run_id=RUN, model="ab" * 32, from_move=1),
        ),
        moves=progress.noted_moves(),
    )


def seeds() -> list[bytes]:
    seal_unfinished(FILE, CONFIG, RUN, [in_progress(1, 3), in_progress(2, 1)])
    return [FILE.read_bytes()]


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def run(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        games, digest = read_unfinished(FILE, GAME)
    except (Corrupt, ConfigError) as refusal:
        assert str(refusal)
        return
    assert len(digest) == 64
    for each in games:
        assert len(each.progress.moves) == len(each.about.moves)
        assert not GAME.terminal(each.progress.state[None, :])[0]
        json.dumps(each.progress.to_json(), allow_nan=False)


run(seeds()[0])  # compiles the rules before memory is limited
