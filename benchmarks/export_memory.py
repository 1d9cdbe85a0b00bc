"""Memory of the `export` job: the same for two thousand games as for twenty thousand.

Random games of connect_four with made-up policies, all in one shard and nothing validated before, so the
job replays, scores, chooses and writes every one of them. Each run is a process of its own; the figure is the
most memory that was resident in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmark import command
from ringrift.games.registry import load_game
from ringrift.jobs.shards.records import PlayedGame, SeatRecord, SoftPolicies, termination_of
from ringrift.jobs.shards.storage import ShardWriter

KEY = "connect_four_2p"
GAMES = (2_000, 20_000)
QUICK_GAMES = (200, 2_000)
GROWTH_MIB_MAX = 4.0


def random_games(count: int) -> Iterator[PlayedGame]:
    """Different games, a policy for every move."""
    game, rng = load_game(KEY), np.random.default_rng(1)
    for number in range(count):
        state, actions, legals = game.new_states(1), [], []
        while not game.terminal(state)[0]:
            legals.append(game.legal(state).actions)
            actions.append(rng.choice(legals[-1]))
            game.apply(state, np.array(actions[-1:], dtype=np.int32), trusted=True)
        policy = [rng.dirichlet(np.ones(len(legal))).astype(np.float32) for legal in legals]
        seats = tuple(
            SeatRecord("gumbel", "random", float(result), int(rank), None, 1)
            for result, rank in zip(game.results(state)[0], game.rankings(state)[0], strict=True)
        )
        yield PlayedGame(
            game_id=f"{number:08d}",
            config_key=KEY,
            seed=number,
            run_id="benchmark",
            run_index=number,
            source="selfplay",
            engine_mode="gumbel",
            started_s=1e6,
            completed_s=1e6 + number,
            termination=termination_of(game, state[0]),
            seats=seats,
            actions=np.array(actions, dtype=np.int32),
            policies=SoftPolicies(
                np.cumsum([0, *map(len, legals)]), np.concatenate(legals), np.concatenate(policy)
            ),
            root_values=np.zeros((len(actions), game.players), dtype=np.float32),
        )


def write_games(folder: Path, count: int) -> Path:
    facts = {"config_key": KEY}
    writer = ShardWriter(folder, "games", load_game(KEY), games_per_shard=10 * count, facts=facts)
    for played in random_games(count):
        writer.add(played)
    artifact = writer.seal()
    assert artifact is not None
    writer.close()
    return artifact.path


def peak_mib(shard: Path, out: Path) -> float:
    """Export *shard* and return the most memory that the job had."""
    job = [sys.executable, "-m", "ringrift.jobs", "export", "--shards", str(shard), "--out", str(out)]
    child = subprocess.Popen([*job, "--rows-max", "100000000"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss / 1024


def run(quick: bool = False) -> dict[str, Any]:
    counts = QUICK_GAMES if quick else GAMES
    peaks = {}
    memory = Path("/dev/shm")  # every game is synced as it is written, which a disk takes its time for
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for count in counts:
            shard = write_games(Path(folder) / str(count), count)
            peaks[count] = round(peak_mib(shard, Path(folder) / f"{count}.npz"), 1)
    growth = peaks[counts[1]] - peaks[counts[0]]
    return {"game": KEY, "peak_mib": peaks, "growth_mib": round(growth, 1), "met": growth <= GROWTH_MIB_MAX}


def table(result: dict[str, Any]) -> str:
    lines = [f"{games:>7,} games: {peak:.1f} MiB" for games, peak in result["peak_mib"].items()]
    return "\n".join([*lines, f"growth {result['growth_mib']} MiB (at most {GROWTH_MIB_MAX:g})"])


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
