"""Training on one core or one GPU: samples per second, and where the time goes.

The samples are real positions of square8_2p in random symmetries, for the medium network, through the code
of the `train` job: rows to batches, forward, backward, clipping, AdamW, averaging. On a GPU the network is
compiled and computes in bfloat16, and other threads make the batches while it does.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmark import command
from ringrift.games.contract import Game
from ringrift.games.ringrift.game import make_game
from ringrift.jobs.training.learner import BatchesAhead, Learner, LearnerConfig
from ringrift.jobs.training.learning_loop import ReplayWindow
from ringrift.jobs.training.rows import make_batch
from ringrift.network.model import build
from ringrift.search.contract import SearchConfig, UniformEvaluator
from ringrift.search.selfplay import SelfplayConfig, play_games

KEY, PRESET = "square8_2p", "medium"
CPU_BATCH, GPU_BATCH = 256, 4096
LR = 1e-3


def positions(game: Game, games: int) -> ReplayWindow:
    """Rows of games between players that see all moves alike."""
    window = ReplayWindow(game)
    config = SelfplayConfig(search=SearchConfig(simulations=8, considered=4), slots=min(games, 64))
    for finished in play_games(game, UniformEvaluator(game), config, range(games)):
        window.add(finished)
    return window


def measure(
    game: Game,
    window: ReplayWindow,
    config: LearnerConfig,
    *,
    device: str,
    batch: int,
    steps: int,
    ahead: int,
) -> dict[str, Any]:
    def make(step: int) -> Any:
        rng = np.random.default_rng([1, step])
        rows = window.draw(rng, batch)
        return make_batch(game, rows, rng.integers(0, game.symmetries, batch))

    learner = Learner(build(game, PRESET, seed=1), config, device=device)
    warm = 5 if config.compile else 2
    batches = BatchesAhead(make, last=steps + warm, ahead=ahead)
    waited = 0.0
    begun = now(device)
    for step in range(steps + warm):
        if step == warm:
            waited, begun = 0.0, now(device)
        asked = time.perf_counter()
        rows = batches.at(step)
        waited += time.perf_counter() - asked
        learner.step(rows, LR)
    took = now(device) - begun
    batches.close()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "one core",
        "precision": "bfloat16" if config.bf16 else "float32",
        "compiled": config.compile,
        "batch": batch,
        "batches_ahead": ahead,
        "samples_per_s": steps * batch / took,
        "waiting_share": waited / took,
    }


def now(device: str) -> float:
    """Wall time once a GPU has done all it was given; processor time of a core."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def run(quick: bool = False) -> dict[str, Any]:
    game = make_game(KEY)
    window = positions(game, 8 if quick else 64)
    torch.set_num_threads(1)
    steps = 3 if quick else 20
    rows = [
        measure(game, window, LearnerConfig(bf16=bf16), device="cpu", batch=CPU_BATCH, steps=steps, ahead=0)
        for bf16 in (False, True)
    ]
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        config = LearnerConfig(bf16=True, compile=True)
        loaders = max(1, (os.cpu_count() or 2) - 2)
        for ahead in (0, loaders):
            rows.append(
                measure(game, window, config, device="cuda", batch=GPU_BATCH, steps=10 * steps, ahead=ahead)
            )
        rows.append(step_alone(game, window, config, steps=10 * steps))
    return {"rows": rows, "met": all(row["samples_per_s"] > 0 for row in rows)}


def step_alone(game: Game, window: ReplayWindow, config: LearnerConfig, *, steps: int) -> dict[str, Any]:
    """The same batch again and again: what the GPU could do if batches cost nothing."""
    batch = make_batch(game, window.draw(np.random.default_rng(1), GPU_BATCH))
    learner = Learner(build(game, PRESET, seed=1), config, device="cuda")
    for _ in range(5):
        learner.step(batch, LR)
    begun = now("cuda")
    for _ in range(steps):
        learner.step(batch, LR)
    return {
        "device": "GPU, batches for nothing",
        "precision": "bfloat16",
        "compiled": True,
        "batch": GPU_BATCH,
        "batches_ahead": 0,
        "samples_per_s": steps * GPU_BATCH / (now("cuda") - begun),
        "waiting_share": 0.0,
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"{'device':<26}{'precision':<11}{'batch':>6}{'ahead':>7}{'samples/s':>12}{'waiting':>9}"]
    for row in result["rows"]:
        lines.append(
            f"{row['device']:<26}{row['precision']:<11}{row['batch']:>6}{row['batches_ahead']:>7}"
            f"{row['samples_per_s']:>12,.0f}{row['waiting_share']:>9.0%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
