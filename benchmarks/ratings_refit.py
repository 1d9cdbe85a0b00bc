"""For how long new matches hold up the event loop of a run with 10,000 matches of 300 participants.

The ratings are fitted in a thread while a pulse beats on the loop; the longest gap between two beats is what
everything else on the loop would have waited. Afterwards the ratings are asked for on the loop, as decisions
do. Target: neither takes 50 ms. For comparison: the longest gap while nothing is done, and a fit on the loop.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable

import benchmark
from ringrift.learning.controller import RatingRefits
from ringrift.learning.facts.records import BucketRules, Match
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging import ratings

HELD_MS_MAX = 50.0
BEAT_S = 0.001
ROUNDS = 10


def run(quick: bool) -> benchmark.Result:
    matches, participants = (1_000, 60) if quick else (10_000, 300)
    state = ConfigState("square8_2p", BucketRules())
    state.matches.extend(_history(matches, participants))
    return asyncio.run(_measure(state))


async def _measure(state: ConfigState) -> benchmark.Result:
    refits, rng = RatingRefits(), random.Random(2)
    await refits.follow(state)
    held_ms, asked_ms, took_ms, idle_ms = [], [], [], []
    for _ in range(ROUNDS):
        state.matches.append(_match(len(state.matches), state.matches[-1].first, "random", rng))
        took, gap = await _beside_a_pulse(refits.follow(state))
        took_ms.append(took)
        held_ms.append(gap)
        idle_ms.append((await _beside_a_pulse(asyncio.sleep(took / 1000)))[1])
        began_s = time.perf_counter()
        ratings.rate(state.matches)
        asked_ms.append(1000 * (time.perf_counter() - began_s))
    return {
        "matches": len(state.matches),
        "refit_ms": max(took_ms),
        "held_ms": max(held_ms),
        "idle_ms": max(idle_ms),
        "asked_ms": max(asked_ms),
        "on_the_loop_ms": _on_the_loop_ms(state),
        "met": max(*held_ms, *asked_ms) < HELD_MS_MAX,
    }


async def _beside_a_pulse(work: Awaitable[None]) -> tuple[float, float]:
    """How long *work* took, and the longest time that the loop was held up meanwhile; in ms."""
    beats = asyncio.create_task(_longest_gap_s())
    await asyncio.sleep(0)
    began_s = time.perf_counter()
    await work
    took_ms = 1000 * (time.perf_counter() - began_s)
    beats.cancel()
    return took_ms, 1000 * await beats


def _on_the_loop_ms(state: ConfigState) -> float:
    ratings._rated.cache_clear()
    ratings._fit_group.cache_clear()
    began_s = time.perf_counter()
    ratings.rate(state.matches)
    return 1000 * (time.perf_counter() - began_s)


async def _longest_gap_s() -> float:
    """Beats until it is cancelled."""
    longest_s, last_s = 0.0, time.perf_counter()
    while True:
        try:
            await asyncio.sleep(BEAT_S)
        except asyncio.CancelledError:
            return max(longest_s, time.perf_counter() - last_s - BEAT_S)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s - BEAT_S), now_s


def _history(matches: int, participants: int) -> list[Match]:
    rng, found = random.Random(1), []
    for number in range(matches):
        at = number * participants // matches
        rival = max(0, at - 1 - rng.randrange(5))
        second = "random" if at == 0 or rng.random() < 0.1 else f"{rival:064x}"
        found.append(_match(number, f"{at:064x}", second, rng))
    return found


def _match(number: int, first: str, second: str, rng: random.Random) -> Match:
    wins = rng.randrange(20, 45)
    return Match(
        job_id=f"j{number}",
        first=first,
        second=second,
        simulations=32,
        players=2,
        games=64,
        wins=wins,
        draws=0,
        losses=64 - wins,
        pairs=None,
        at_s=float(number),
    )


def table(result: benchmark.Result) -> str:
    return "\n".join(
        [
            f"{result['matches']:,} matches, the worst of {ROUNDS} new ones",
            f"refit beside the loop        {result['refit_ms']:.0f} ms",
            f"the loop was held up for     {result['held_ms']:.1f} ms (want < {HELD_MS_MAX:.0f})",
            f"the same time with nothing   {result['idle_ms']:.1f} ms",
            f"asked for on the loop        {result['asked_ms']:.1f} ms (want < {HELD_MS_MAX:.0f})",
            f"all of it fitted on the loop {result['on_the_loop_ms']:.0f} ms",
        ]
    )


if __name__ == "__main__":
    sys.exit(benchmark.command(run, table, __doc__))
