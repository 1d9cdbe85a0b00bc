"""How often the promotion rules are wrong, and how many games they take: simulated matches of known strength.

    python benchmarks/promotion_error_rates.py --runs 1000

Games are drawn from the model that ratings use (two players: win or loss by the difference; more: places
one after the other), so the figures are those of the rules and not of any network. A promotion is looked at
after every opening, as the job does, whatever pieces it is played in; a second look after so many games.
"""

from __future__ import annotations

import argparse
import random

from ringrift.learning.judging.promotion import PromotionRules
from ringrift.learning.plan.rules import LearningRules
from ringrift.statistics.match_evidence import Evidence, MatchVerdict, Verdict
from ringrift.statistics.ratings import place_chances

GAPS = (-100, -50, -25, 0, 20, 35, 50, 80, 120, 200, 300)


def play(rng: random.Random, found: Evidence, elo: float, games: int) -> None:
    """Add so many games, in whole openings."""
    chances = place_chances(elo, found.players)
    for _ in range(games // found.players):
        places = rng.choices(range(found.players), chances, k=found.players)
        wins, pairs = places.count(0), [0] * 5
        counts = [places.count(place) for place in range(found.players)] if found.players > 2 else []
        if found.players == 2:
            pairs[2 * wins] = 1
        losses = found.players - wins
        found.add(Evidence(found.players, found.players, wins, 0, losses, pairs, counts))


def promotion(rng: random.Random, elo: float, players: int, rules: PromotionRules) -> tuple[bool, int, bool]:
    """Whether it passed, after how many games, and whether only the cap decided."""
    test, found = rules.head_to_head(), Evidence(players)
    while (result := test.result(found)).verdict is MatchVerdict.OPEN:
        play(rng, found, elo, players)
    return result.verdict is MatchVerdict.PASSED, found.games, result.at_cap


def second_look(
    rng: random.Random, elo: float, players: int, rules: PromotionRules
) -> tuple[bool, int, bool]:
    """Whether it was rolled back; the plan looks on only while the games speak against the champion."""
    found, once = Evidence(players), rules.chunk(players, rules.games_max)
    while True:
        play(rng, found, elo, once)
        state = found.state(rules.reversed_test())
        if state.verdict is Verdict.NOT_STRONGER:
            return True, found.games, False
        if state.verdict is Verdict.STRONGER or state.llr >= 0 or found.games >= rules.games_max:
            return False, found.games, state.verdict is Verdict.CONTINUE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--chunk", type=int, default=LearningRules().promotion.chunk_games)
    given = parser.parse_args()
    rules = PromotionRules(chunk_games=given.chunk)
    print(f"{given.chunk} games a second look")
    for what, run in (("promoted", promotion), ("rolled back", second_look)):
        print(f"\n| strength against the opponent | players | {what} | of these by a bound | games |")
        print("|---|---|---|---|---|")
        for players in (2, 3, 4):
            for elo in GAPS:
                rng = random.Random(f"1 {elo} {players} {what}")
                found = [run(rng, elo, players, rules) for _ in range(given.runs)]
                changed = sum(each for each, _, _ in found) / given.runs
                by_bound = sum(each and not at_cap for each, _, at_cap in found) / given.runs
                games = sum(took for _, took, _ in found) / given.runs
                print(f"| {elo:+d} | {players} | {changed:.1%} | {by_bound:.1%} | {games:.0f} |", flush=True)


if __name__ == "__main__":
    main()
