"""How often the promotion rules are wrong, and how many games they take: simulated matches of known strength.

    python benchmarks/promotion_error_rates.py --runs 1000 --chunk 80

Games are drawn from the model that ratings use (two players: win or loss by the difference; more: places
one after the other), so the figures are those of the rules and not of any network.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

import msgspec

from ringrift.learning.promotion import PromotionRules, PromotionVerdict, judge, judge_rollback
from ringrift.learning.records import Match
from ringrift.learning.rules import LearningRules
from ringrift.statistics.plackett_luce import place_chances

GAPS = (-100, -50, -25, 0, 20, 35, 50, 80, 120, 200, 300)
PASSED = Match(
    job_id="floor", first="new", second="random", simulations=32, players=2, games=128, wins=128, draws=0,
    losses=0, pairs=(0, 0, 0, 0, 64), places=(128, 0),
)  # fmt: skip


def played(rng: random.Random, elo: float, players: int, games: int, purpose: str) -> Match:
    places = rng.choices(range(players), place_chances(elo, players), k=games)
    counts = Counter(places)
    wins = counts[0] if players == 2 else 0
    pairs = None
    if players == 2:
        points = [2 * (place == 0) for place in places]
        sums = Counter(one + other for one, other in zip(points[::2], points[1::2], strict=True))
        pairs = tuple(sums[each] for each in range(5))
    return Match(
        job_id="match", first="new", second="old", simulations=32, players=players, games=games, wins=wins,
        draws=0, losses=games - wins, pairs=pairs, places=tuple(counts[place] for place in range(players)),
        purpose=purpose,
    )  # fmt: skip


def one_run(
    rng: random.Random, elo: float, players: int, rules: PromotionRules, *, rollback: bool
) -> tuple[PromotionVerdict, int, bool]:
    """PromotionVerdict, games against the opponent, and whether it was reached at the cap."""
    first = (128, *[0] * (players - 1))
    pairs = PASSED.pairs if players == 2 else None
    floor = msgspec.structs.replace(PASSED, players=players, places=first, pairs=pairs)
    matches = [floor]
    while True:
        if rollback:
            found = judge_rollback("new", "old", matches, rules=rules)
            evidence = found.evidence["rollback"]
        else:
            found = judge("new", "old", matches, rules=rules)
            evidence = found.evidence["head_to_head"]
        if rollback and evidence["games"] and evidence["llr"] >= 0 and found.play is not None:
            return (
                PromotionVerdict.KEEP,
                int(evidence["games"]),
                True,
            )  # the plan looks on only while there is doubt
        if found.play is None:
            return found.verdict, int(evidence["games"]), abs(evidence["llr"]) < evidence["bounds"][1]
        matches.append(played(rng, elo, players, found.games, found.play.purpose))


def row(
    elo: float, players: int, *, runs: int, rollback: bool, chunk: int, seed: int = 1
) -> dict[str, float]:
    rng, rules = random.Random(f"{seed} {elo} {players} {rollback}"), PromotionRules(chunk_games=chunk)
    wanted = PromotionVerdict.ROLL_BACK if rollback else PromotionVerdict.PROMOTE
    changed = by_bound = games = jobs = 0
    for _ in range(runs):
        verdict, took, at_cap = one_run(rng, elo, players, rules, rollback=rollback)
        changed += verdict is wanted
        by_bound += verdict is wanted and not at_cap
        games += took
        jobs += -(-took // rules.chunk(players, took))
    return {
        "changed": changed / runs,
        "by_bound": by_bound / runs,
        "games": games / runs,
        "jobs": jobs / runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--chunk", type=int, default=LearningRules().promotion.chunk_games)
    given = parser.parse_args()
    print(f"{given.chunk} games a job")
    for rollback in (False, True):
        what = "rolled back" if rollback else "promoted"
        print(f"\n| strength against the opponent | players | {what} | of these by a bound | games | jobs |")
        print("|---|---|---|---|---|---|")
        for players in (2, 3, 4):
            for elo in GAPS:
                found = row(elo, players, runs=given.runs, rollback=rollback, chunk=given.chunk)
                print(
                    f"| {elo:+d} | {players} | {found['changed']:.1%} | {found['by_bound']:.1%} "
                    f"| {found['games']:.0f} | {found['jobs']:.2f} |"
                )


if __name__ == "__main__":
    main()
