"""Self-play on one core: simulations per core-second, where the time goes, and how far from the limit.

Connect four with 50 simulations a move and a residual net of 4 blocks of 64 channels, beside pgx + mctx on
the same core in the same run if they are installed (`PEER_PYTHON` may name an interpreter that has them),
and the figures of OpenSpiel's C++ AlphaZero as they were measured on a machine of this kind. The same for
RingRift. Times are processor times of one thread; the net is a new one with random weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmark import command
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.network.architecture import Architecture, Preset
from ringrift.network.evaluator import CACHE_BYTES, NetEvaluator, has_bfloat16
from ringrift.network.model import ResidualNet, build
from ringrift.search.contract import SearchConfig
from ringrift.search.selfplay import Selfplay, SelfplayConfig

NET = Preset(channels=64, blocks=4, neck=16, hidden=64)
SIMULATIONS, SLOTS = 50, 128
OPENSPIEL_CPP = 4420.0  # simulations per core-second, 8 actors, batch 8, with its cache
PEER_FACTOR = 1.5
PEER_VARIABLE = "PEER_PYTHON"
WARM_MOVES = 4  # per game
GAMES = ("connect_four_2p", "square8_2p", "hex8_2p")
PEER = Path(__file__).with_name("selfplay_peer_pgx.py")
RULES = ("new_states", "legal", "apply", "terminal", "to_move", "results", "rankings", "observe")


class Clock:
    """Time by part, counted for the innermost part only; processor time if nothing else is given."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self._now = now
        self.spent: dict[str, float] = {"network": 0.0, "rules": 0.0, "cache": 0.0}
        self._inner = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            begun = self._now()
            try:
                return call(*args, **kwargs)
            finally:
                taken = self._now() - begun
                self.spent[part] += taken - self._inner
                self._inner = outer + taken

        return run


class TimedGame:
    """A game whose rules are timed."""

    def __init__(self, game: Game, clock: Clock) -> None:
        self._game = game
        for name in RULES:
            setattr(self, name, clock.timed("rules", getattr(game, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)


def random_net(game: Game, preset: Preset | str = NET) -> ResidualNet:
    """A new net says nothing; small random weights make it prefer some moves, as a young net does."""
    net = build(game, preset, seed=1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in net.parameters():
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(0, 0.5 / parameter[0].numel() ** 0.5)
    return net


def multiplications(a: Architecture) -> int:
    """Multiply-adds for one position."""
    cells = a.rows * a.columns
    trunk = cells * 9 * a.channels * (a.input_planes + 2 * a.blocks * a.channels)
    heads = cells * a.channels * (a.action_planes + a.neck)
    return trunk + heads + a.hidden * (cells * a.neck + a.players + a.placeless)


def matrix_rate(precision: str, seconds: float) -> float:
    """Multiply-adds per core-second of a large matrix product, the best of several."""
    size, best = 1024, 0.0
    one, other = torch.randn(size, size), torch.randn(size, size)
    if precision == "int8":
        one, other = ((x * 30).clamp(-127, 127).to(torch.int8) for x in (one, other))
        product: Callable[..., Any] = torch._int_mm
    else:
        one, other = one.to(getattr(torch, precision)), other.to(getattr(torch, precision))
        product = torch.mm
    product(one, other)
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        start = time.process_time()
        for _ in range(4):
            product(one, other)
        best = max(best, 4 * size**3 / (time.process_time() - start))
    return best


def measure(key: str, precision: str, *, cached: bool, seconds: float) -> dict[str, Any]:
    clock = Clock()
    game = load_game(key)
    timed: Any = TimedGame(game, clock)
    net = random_net(game)
    evaluator = NetEvaluator(
        net,
        game,
        precision=precision,
        cache_bytes_max=CACHE_BYTES if cached else 0,  # type: ignore[arg-type]
    )
    evaluator.game = timed
    evaluator.engine.judge = clock.timed("network", evaluator.engine.judge)  # type: ignore[method-assign]
    evaluator.evaluate = clock.timed("cache", evaluator.evaluate)  # type: ignore[method-assign]
    config = SelfplayConfig(search=SearchConfig(simulations=SIMULATIONS), slots=SLOTS)
    deadline = 0.0
    loop = Selfplay(
        timed,
        evaluator,
        config,
        range(1 << 40),
        stop=lambda: time.process_time() > deadline if deadline else loop.moves >= WARM_MOVES * SLOTS,
    )
    list(loop)  # until everything is compiled and games have left the opening
    counts, simulations, moves = replace(evaluator.counts), loop.simulations, loop.moves
    clock.spent = dict.fromkeys(clock.spent, 0.0)
    begun = time.process_time()
    deadline = begun + seconds
    games = sum(1 for _ in loop)
    spent = time.process_time() - begun
    judged = evaluator.counts.judged - counts.judged
    shares = {part: taken / spent for part, taken in clock.spent.items()}
    return {
        "game": key,
        "engine": evaluator.engine.name,
        "cached": cached,
        "cpu_s": spent,
        "games_per_core_s": games / spent,
        "positions_per_core_s": (loop.moves - moves) / spent,
        "simulations_per_core_s": (loop.simulations - simulations) / spent,
        "evaluations_per_core_s": judged / spent,
        "known_share": 1 - judged / (evaluator.counts.asked - counts.asked),
        "filled_up_share": 1 - judged / (evaluator.counts.rows - counts.rows),
        "shares": shares | {"tree": 1 - sum(shares.values())},
        "multiplications": multiplications(net.architecture),
        "network_rate": multiplications(net.architecture) * judged / clock.spent["network"],
    }


def peer(python: str | None, seconds: float) -> dict[str, Any] | None:
    """The peer's best run, or None if it is not installed."""
    if python is None:
        if not all(importlib.util.find_spec(name) for name in ("pgx", "mctx")):
            return None
        python = sys.executable
    done = subprocess.run(
        [python, str(PEER), str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60 + 20 * seconds,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Measure; the result says for each target whether it is met."""
    torch.set_num_threads(1)
    seconds = 3.0 if quick else 20.0
    precisions = ["bfloat16", "int8"] if has_bfloat16() else ["float32"]
    beside = peer(os.environ.get(PEER_VARIABLE), seconds)
    rows = [measure(GAMES[0], precisions[0], cached=False, seconds=seconds)]
    rows += [measure(key, name, cached=True, seconds=seconds) for key in GAMES for name in precisions]
    rates = {name: matrix_rate(name, 0.5) for name in precisions}
    for row in rows:
        row["of_matrix_rate"] = row["network_rate"] / rates[row["engine"].split()[-1]]
    plain = next(row for row in rows if row["game"] == GAMES[0] and row["cached"])
    ours = plain["simulations_per_core_s"]
    targets = {
        "above_openspiel_cpp": {"wanted": OPENSPIEL_CPP, "measured": ours, "met": ours > OPENSPIEL_CPP}
    }
    if beside is not None:
        ratio = ours / beside["simulations_per_core_s"]
        targets["times_pgx_mctx"] = {"wanted": PEER_FACTOR, "measured": ratio, "met": ratio >= PEER_FACTOR}
    met = all(target["met"] for target in targets.values())
    return {"rows": rows, "peer": beside, "matrix_rates": rates, "targets": targets, "met": met}


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{'game':<16}{'engine':<14}{'cache':<6}{'games/s':>8}{'moves/s':>9}{'sims/s':>9}{'evals/s':>9}{'known':>7}"
        f"{'network':>9}{'tree':>6}{'rules':>7}{'cache':>7}{'of GEMM':>9}"
    ]
    for row in result["rows"]:
        shares = row["shares"]
        lines.append(
            f"{row['game']:<16}{row['engine']:<14}{'yes' if row['cached'] else 'no':<6}"
            f"{row['games_per_core_s']:>8.2f}{row['positions_per_core_s']:>9.0f}"
            f"{row['simulations_per_core_s']:>9,.0f}{row['evaluations_per_core_s']:>9,.0f}{row['known_share']:>7.0%}"
            f"{shares['network']:>9.0%}{shares['tree']:>6.0%}{shares['rules']:>7.0%}{shares['cache']:>7.0%}"
            f"{row['of_matrix_rate']:>9.0%}"
        )
    beside = result["peer"]
    if beside is None:
        lines.append(f"pgx + mctx: peer not available (pip install pgx mctx jax, or set {PEER_VARIABLE})")
    else:
        lines.append(
            f"pgx {beside['pgx']} + mctx, batch {beside['batch']}: {beside['games_per_core_s']:.2f} games/s, "
            f"{beside['positions_per_core_s']:.0f} moves/s, {beside['simulations_per_core_s']:,.0f} sims/s"
        )
    lines += [
        f"matrix product, {name}: {2 * rate / 1e9:.0f} G operations/s"
        for name, rate in result["matrix_rates"].items()
    ]
    for name, target in result["targets"].items():
        verdict = "met" if target["met"] else "MISSED"
        lines.append(f"{name}: {target['measured']:,.2f} (wanted {target['wanted']:,}) {verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
