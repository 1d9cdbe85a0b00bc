"""Random play on one core: decisions per second of the compiled rules, from start to end of whole games.

A decision is one choice of a player among one or more legal actions; all legal actions are listed each
time. CPU time is measured, so that a busy machine does not count against the rules. Also timed: a start of
a new process that finds its compiled code on disk.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from benchmark import command
from ringrift.games.registry import load_game

WANTED_PER_S = 300_000
TARGETS = ("square8_2p", "hex8_2p")
OTHERS = ("square8_3p", "square8_4p", "hex8_3p", "hex8_4p", "square19_2p", "hexagonal_2p", "connect_four_2p")
START_WANTED_S = 2.0
START = "from ringrift.games.registry import load_game; g = load_game('square8_2p'); g.legal(g.new_states(1))"


def measure(key: str, *, games: int, rounds: int) -> dict[str, float]:
    """The best of some rounds."""
    game = load_game(key)
    game.play_random(game.new_states(1), seed=0)  # loads or compiles
    best: dict[str, float] = {}
    for number in range(rounds):
        states = game.new_states(games)
        begin_s = time.process_time()
        played = game.play_random(states, seed=number)
        took_s = time.process_time() - begin_s
        if not best or played.decisions / took_s > best["decisions_per_s"]:
            best = {
                "decisions_per_s": played.decisions / took_s,
                "games_per_s": games / took_s,
                "decisions_per_game": played.decisions / games,
                "options_per_decision": played.options / played.decisions,
            }
    return best


def measure_start() -> float:
    """Seconds of a process that lists legal actions with code compiled before."""
    best_s = float("inf")
    for _ in range(3):
        begin_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", START], check=True)
        best_s = min(best_s, time.perf_counter() - begin_s)
    return best_s


def run(quick: bool = False) -> dict[str, Any]:
    rounds = 3 if quick else 7
    found = {key: measure(key, games=300 if quick else 2000, rounds=rounds) for key in TARGETS}
    found |= {key: measure(key, games=20 if quick else 200, rounds=rounds) for key in OTHERS}
    result: dict[str, Any] = {"games": found, "cached_start_s": measure_start()}
    result["targets"] = {
        key: {"wanted": WANTED_PER_S, "measured": found[key]["decisions_per_s"]} for key in TARGETS
    }
    for target in result["targets"].values():
        target["met"] = target["measured"] >= target["wanted"]
    start_s = result["cached_start_s"]
    result["targets"]["cached_start_s"] = {
        "wanted": START_WANTED_S,
        "measured": start_s,
        "met": start_s < START_WANTED_S,
    }
    result["met"] = all(target["met"] for target in result["targets"].values())
    return result


def table(result: dict[str, Any]) -> str:
    lines = [f"{'config':<18}{'decisions/s':>12}{'games/s':>10}{'decisions/game':>16}{'options':>9}"]
    for key, found in result["games"].items():
        lines.append(
            f"{key:<18}{found['decisions_per_s']:>12,.0f}{found['games_per_s']:>10,.0f}"
            f"{found['decisions_per_game']:>16.1f}{found['options_per_decision']:>9.1f}"
        )
    for name, target in result["targets"].items():
        verdict = "met" if target["met"] else "MISSED"
        lines.append(f"{name}: {target['measured']:,.2f} (wanted {target['wanted']:,}) {verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
