"""Real games, played at random with made-up policies, and shards of them."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from ringrift.games.registry import load_game
from ringrift.jobs.frame import run_job
from ringrift.jobs.shards.records import PlayedGame, SeatRecord, SoftPolicies, termination_of
from ringrift.jobs.shards.storage import ShardWriter

CONFIG = "connect_four_2p"
GENERATOR = "ab" * 32


def random_game(key=CONFIG, seed=0, *, completed_s=1_000_000.0, run_id="run", budget=16):
    game, rng = load_game(key), np.random.default_rng(seed)
    state = game.new_states(1)
    actions, policies, values = [], [], []
    while not game.terminal(state)[0]:
        legal = game.legal(state).actions
        policy = rng.dirichlet(np.ones(len(legal))).astype(np.float32)
        searched = rng.random() < 0.8
        policies.append((legal, policy) if searched else (legal[:0], policy[:0]))
        values.append(rng.uniform(-1, 1, game.players) if searched else np.full(game.players, np.nan))
        actions.append(rng.choice(legal))
        game.apply(state, np.array(actions[-1:], dtype=np.int32))
    return PlayedGame(
        game_id=f"{key}-{run_id}-{seed}",
        config_key=key,
        seed=seed,
        run_id=run_id,
        run_index=seed,
        source="selfplay",
        engine_mode="gumbel",
        started_s=completed_s - 10,
        completed_s=completed_s,
        termination=termination_of(game, state[0]),
        seats=tuple(
            SeatRecord("gumbel", "net", float(result), int(rank), GENERATOR, budget)
            for result, rank in zip(game.results(state)[0], game.rankings(state)[0], strict=True)
        ),
        actions=np.array(actions, dtype=np.int32),
        policies=SoftPolicies(
            np.cumsum([0] + [len(a) for a, _ in policies], dtype=np.int64),
            np.concatenate([a for a, _ in policies]),
            np.concatenate([p for _, p in policies]),
        ),
        root_values=np.array(values, dtype=np.float32),
        generator_sha256=GENERATOR,
        search_budget=budget,
        metadata={"note": "made for a test"},
    )


def write_shard(folder, games, *, name="games", games_per_shard=10_000, key=CONFIG):
    writer = ShardWriter(
        folder, name, load_game(key), games_per_shard=games_per_shard, facts={"config_key": key}
    )
    for played in games:
        writer.add(played)
    artifact = writer.seal()
    writer.close()
    return artifact


def run(spec, *argv):
    """Run a job in this process; returns its exit code and its result line."""
    out = io.StringIO()
    code = run_job(spec, [str(each) for each in argv], out=out)
    return code, json.loads(out.getvalue().splitlines()[-1])


class Ticking:
    """A clock that moves when it is looked at, so that the speed of the machine does not matter."""

    def __init__(self, runtime):
        self._runtime, self._looks = runtime, 0

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def monotonic_s(self):
        self._looks += 1
        return self._looks * 0.01


def stopping_after(spec, lines):
    """The same job, asked to stop after so many lines of progress."""

    def work(job, params):
        said = []
        tell = job.progress

        def progress(*args, **fields):
            said.append(args)
            if len(said) >= lines:
                job.stop.request("the test")
            tell(*args, **fields)

        job.progress = progress
        return spec.run(job, params)

    return replace(spec, run=work)


def artifacts_of(result, kind):
    return [Path(each["path"]) for each in result["artifacts"] if each["artifact"] == kind]
