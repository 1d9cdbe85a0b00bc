"""Self-play and training on one GPU: positions and samples per second, and where the time goes.

Rules and trees run on the processor, so self-play starts one process per core and all of them share the
GPU. Training is the bare step on random samples of the right shape: forward, backward, AdamW, in bfloat16,
compiled. Without a GPU there is nothing to measure and the result says so.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmark import command
from ringrift.games.ringrift.game import make_game
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import build
from ringrift.search.contract import SearchConfig
from ringrift.search.selfplay import Selfplay, SelfplayConfig
from selfplay_speed import Clock, TimedGame, multiplications, random_net

KEY, PRESET, SIMULATIONS = "square8_2p", "medium", 64
SLOTS, BATCH = 256, 1024
TRAINING_BATCH = 4096
WARM_MOVES = 3  # per game


def play(number: int, barrier: Any, seconds: float, slots: int, batch: int) -> dict[str, Any]:
    """One self-play process; all begin to count together."""
    torch.set_num_threads(1)
    clock = Clock(time.perf_counter)
    game = make_game(KEY)
    timed: Any = TimedGame(game, clock)
    net = random_net(game, PRESET)
    evaluator = NetEvaluator(net, game, batch=batch, device="cuda")
    evaluator.game = timed
    evaluator.engine.judge = clock.timed("network", evaluator.engine.judge)  # type: ignore[method-assign]
    evaluator.evaluate = clock.timed("cache", evaluator.evaluate)  # type: ignore[method-assign]
    config = SelfplayConfig(search=SearchConfig(simulations=SIMULATIONS), slots=slots)
    deadline = 0.0
    loop = Selfplay(
        timed,
        evaluator,
        config,
        range(number << 40, 1 << 60),
        stop=lambda: time.perf_counter() > deadline if deadline else loop.moves >= WARM_MOVES * slots,
    )
    list(loop)  # until everything is compiled
    barrier.wait(timeout=300)
    moves, simulations, judged = loop.moves, loop.simulations, evaluator.counts.judged
    clock.spent = dict.fromkeys(clock.spent, 0.0)
    begun = time.perf_counter()
    deadline = begun + seconds
    list(loop)
    wall = time.perf_counter() - begun
    return {
        "positions_per_s": (loop.moves - moves) / wall,
        "simulations_per_s": (loop.simulations - simulations) / wall,
        "evaluations_per_s": (evaluator.counts.judged - judged) / wall,
        "rows_per_batch": evaluator.counts.judged / evaluator.counts.batches,
        "shares": {part: spent / wall for part, spent in clock.spent.items()},
    }


def _play_into(queue: Any, *args: Any) -> None:
    queue.put(play(*args))


def selfplay(processes: int, seconds: float, slots: int, batch: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_play_into, args=(queue, number, barrier, seconds, slots, batch))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    totals = {name: sum(one[name] for one in found) for name in found[0] if name.endswith("_per_s")}
    shares = {part: float(np.mean([one["shares"][part] for one in found])) for part in found[0]["shares"]}
    rows = float(np.mean([one["rows_per_batch"] for one in found]))
    return {
        "processes": processes,
        "slots": slots,
        "rows_per_batch": rows,
        **totals,
        "shares": shares | {"tree": 1 - sum(shares.values())},
    }


def inference(seconds: float) -> dict[str, float]:
    """Evaluations per second of the bare network, inputs and outputs on the GPU."""
    net = random_net(make_game(KEY), PRESET).to("cuda", torch.bfloat16).eval()
    run_net = torch.compile(net, mode="reduce-overhead")
    found = {}
    with torch.inference_mode():
        for batch in (256, 1024, 4096):
            shape = (batch, *make_game(KEY).observation_shape)
            planes = torch.rand(shape, device="cuda", dtype=torch.bfloat16)
            planes = planes.contiguous(memory_format=torch.channels_last)
            found[f"batch_{batch}"] = batch / _step_s(lambda given=planes: run_net(given), seconds)
    return found


def training(seconds: float) -> dict[str, float]:
    game = make_game(KEY)
    net = build(game, PRESET, seed=1).to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    layout = game.action_layout
    options = layout.planes * layout.rows * layout.columns + layout.placeless
    planes = torch.rand((TRAINING_BATCH, *game.observation_shape), device="cuda")
    planes = planes.contiguous(memory_format=torch.channels_last)
    policy = torch.softmax(torch.randn((TRAINING_BATCH, options), device="cuda"), dim=1)
    values = torch.rand((TRAINING_BATCH, game.players), device="cuda") * 2 - 1

    @torch.compile
    def loss_of(given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            judged = net(given)
        logits = judged.logits().float()
        return functional.cross_entropy(logits, policy) + functional.mse_loss(judged.values.float(), values)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(planes).backward()
        optimizer.step()

    return {"batch": TRAINING_BATCH, "samples_per_s": TRAINING_BATCH / _step_s(step, seconds)}


def _step_s(step: Any, seconds: float) -> float:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        steps += 10
    return (time.perf_counter() - begun) / steps


def run(quick: bool = False) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"skipped": "no GPU here", "met": True}
    seconds = 5.0 if quick else 20.0
    cores = os.cpu_count() or 1
    net = build(make_game(KEY), PRESET, seed=1)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "game": KEY,
        "net": PRESET,
        "parameters": net.parameter_count,
        "multiplications": multiplications(net.architecture),
        "simulations_per_move": SIMULATIONS,
        "inference": inference(seconds / 5),
        "training": training(seconds / 5),
        "selfplay": [selfplay(count, seconds, SLOTS, BATCH) for count in (1, cores)],
        "met": True,  # reported, without a target
    }


def table(result: dict[str, Any]) -> str:
    if "skipped" in result:
        return f"not measured: {result['skipped']}"
    lines = [f"{result['gpu']}, {result['game']}, {result['net']} net of {result['parameters']:,} parameters"]
    for name, rate in result["inference"].items():
        lines.append(f"bare network, {name.replace('_', ' ')}: {rate:,.0f} evaluations/s")
    lines.append(
        f"training, batch {result['training']['batch']}: {result['training']['samples_per_s']:,.0f} samples/s"
    )
    for row in result["selfplay"]:
        shares = ", ".join(f"{part} {share:.0%}" for part, share in row["shares"].items())
        lines.append(
            f"self-play, {row['processes']} processes: {row['positions_per_s']:,.0f} positions/s, "
            f"{row['simulations_per_s']:,.0f} simulations/s, {row['evaluations_per_s']:,.0f} evaluations/s "
            f"({row['rows_per_batch']:.0f} rows a batch; {shares})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
