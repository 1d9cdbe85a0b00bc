"""When a candidate should give way to a newer one: how far the champion is behind the newest model.

    python benchmarks/candidates_given_up.py --runs 150

Strength grows steadily with the games of judging that there is time for; a candidate is cut every 15 of them,
with luck of its own. One is judged at a time, in jobs of 110 games, by the sequential test. After an open
job it is given up if its log-likelihood ratio is below a share of the upper bound. Games are single ones
without draws, and the ratio is the one of equal variances, which is close to the test's.
"""

from __future__ import annotations

import argparse
import random
from math import inf

from ringrift.learning.judging.promotion import PromotionRules
from ringrift.statistics.match_evidence import expected_score

JOB_GAMES, EVERY_GAMES, TOTAL_GAMES = 110, 15, 6000
LUCK_ELO, GAME_VARIANCE = 15.0, 0.25
GROWTHS = (2.0, 0.5, 0.2, 0.1, 0.05, 0.02)  # Elo a game of judging
SHARES = (-inf, 0.0, 1 / 6, 1 / 3, 1 / 2, inf)


def mean_lag(rng: random.Random, growth: float, share: float, rules: PromotionRules) -> float:
    test = rules.test()
    mean0, mean1 = expected_score(test.elo0), expected_score(test.elo1)
    weight, middle = (mean1 - mean0) / GAME_VARIANCE, (mean0 + mean1) / 2
    time, champion, lag = 0, 0.0, 0.0
    while time < TOTAL_GAMES:
        candidate = growth * (time // EVERY_GAMES) * EVERY_GAMES + rng.gauss(0.0, LUCK_ELO)
        chance, llr, games = expected_score(candidate - champion), 0.0, 0
        while test.lower < llr < test.upper and games < rules.games_max:
            if games and games % JOB_GAMES == 0 and llr < share * test.upper:
                break
            llr += weight * ((rng.random() < chance) - middle)
            games += 1
            lag += growth * time - champion
            time += 1
        if llr >= test.upper or (games >= rules.games_max and llr > 0):
            champion = candidate
    return lag / time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=150)
    given = parser.parse_args()
    print("| growth | " + " | ".join(f"given up below {share:.2f} of the bound" for share in SHARES) + " |")
    print("|---" * (len(SHARES) + 1) + "|")
    for growth in GROWTHS:
        lags = [
            sum(mean_lag(random.Random(seed), growth, share, PromotionRules()) for seed in range(given.runs))
            for share in SHARES
        ]
        print(f"| {growth:g} | " + " | ".join(f"{lag / given.runs:.1f}" for lag in lags) + " |", flush=True)


if __name__ == "__main__":
    main()
