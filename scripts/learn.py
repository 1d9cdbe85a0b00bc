"""Learn a game from nothing on one core, and show how strong it gets with processor time.

    python scripts/learn.py train --config connect_four_2p --seed 1 --out runs/c4 --cpu-s 705
    python scripts/learn.py evaluate --out runs/c4 --against random untrained mcts solver
    python scripts/learn.py plot --out runs/c4

`train` writes a snapshot of the weights at each given processor time and can be stopped (SIGTERM) and
started again. Only the training process's time counts: playing, training, saving, imports and all.
`evaluate` plays every snapshot of every seed against fixed opponents with the same number of simulations
on both sides; what is already in the results is not played again. Against `solver`, for connect four, the
score is the share of 600 positions in which the snapshot's move keeps the game-theoretic result. `plot` draws
the curves.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from prove_report import over_seeds
from solver_positions import moves_kept, read_positions

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.files import read_json, seal_json
from ringrift.jobs.frame import log_to_stderr
from ringrift.jobs.samples.npz_files import Targets
from ringrift.jobs.samples.plan import PowerWindow
from ringrift.jobs.training.learner import LearnerConfig
from ringrift.jobs.training.learning_loop import LearningConfig, LearningLoop
from ringrift.learning.facts.records import base_rows, growth_of
from ringrift.learning.plan.rules import play_rules, target_rules
from ringrift.network.architecture import ModelCard
from ringrift.network.evaluator import NetEvaluator, has_bfloat16
from ringrift.network.model import build
from ringrift.network.storage import load_model, save_model
from ringrift.players.contract import Player
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.search_player import SearchPlayer
from ringrift.players.specs import parse_player
from ringrift.search.contract import SearchConfig
from ringrift.search.selfplay import Openings, PlayoutCaps, SelfplayConfig, TemperatureSchedule
from ringrift.statistics.line_plot import line_plot

DEFAULT_SNAPSHOTS = (60, 120, 240, 480, 705, 1200, 1800, 2400, 3000, 3600, 5400, 7200, 10800, 14400)
# Players that draw lots need no random opening to play different games.
DRAWS_LOTS = ("random", "mcts")
BY_GAME = "if not given, as `ringrift run` plays and learns this game"


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    torch.set_num_threads(1)
    log_to_stderr("warning")
    run = {"train": train, "evaluate": evaluate, "plot": plot}[options.command]
    try:
        return run(options)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    learning = commands.add_parser("train", help="learn from nothing")
    learning.add_argument("--config", required=True)
    learning.add_argument("--seed", type=int, default=1)
    learning.add_argument("--cpu-s", type=float, required=True, help="processor seconds to spend")
    learning.add_argument("--snapshots", type=int, nargs="+", default=DEFAULT_SNAPSHOTS)
    learning.add_argument("--save-every-cpu-s", type=float, default=300.0)
    learning.add_argument("--preset", default="small")
    learning.add_argument("--simulations", type=int, default=32)
    learning.add_argument("--considered", type=int, default=16)
    learning.add_argument("--c-scale", type=float, help=BY_GAME)
    learning.add_argument("--rescale", action=argparse.BooleanOptionalAction, help=BY_GAME)
    learning.add_argument("--quick-simulations", type=int, help=f"of moves that teach no policy; {BY_GAME}")
    learning.add_argument("--full-share", type=float, help=f"of the moves that do; {BY_GAME}")
    learning.add_argument("--opening-plies", type=int, help=f"the most random ones of a game; {BY_GAME}")
    learning.add_argument("--slots", type=int, default=64)
    learning.add_argument("--temperature-plies", type=int, default=30)
    learning.add_argument("--samples-per-row", type=float, default=4.0)
    learning.add_argument("--batch", type=int, default=256)
    learning.add_argument("--lr", type=float, default=2e-3)
    learning.add_argument("--lr-steps", type=int, default=1000)
    learning.add_argument("--window-rows", type=float, help=BY_GAME)
    learning.add_argument("--window-growth", type=float, help=f"beyond that; {BY_GAME}")
    learning.add_argument("--value-mix", type=float, default=0.8)
    learning.add_argument("--value-decay", type=float, help=f"of later searches in values; {BY_GAME}")
    learning.add_argument(
        "--surprise", type=float, help=f"share of it in how often rows are drawn; {BY_GAME}"
    )
    learning.add_argument("--average-decay", type=float, default=0.995)
    judging = commands.add_parser("evaluate", help="play the snapshots against fixed opponents")
    judging.add_argument("--against", nargs="+", default=["random", "untrained", "mcts", "heuristic"])
    judging.add_argument("--games", type=int, default=200)
    judging.add_argument("--simulations", type=int, default=None, help="both sides; as in training if none")
    judging.add_argument("--snapshots", type=int, nargs="+", default=None, help="only those")
    judging.add_argument("--seeds", type=int, nargs="+", default=None, help="only those")
    for command in (learning, judging, commands.add_parser("plot", help="draw the results")):
        command.add_argument("--out", type=Path, required=True)
    return top


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


# Training.


def learning_config(options: argparse.Namespace) -> LearningConfig:
    caps, openings = None, None
    if options.quick_simulations:
        caps = PlayoutCaps(quick_simulations=options.quick_simulations, full_share=options.full_share)
    if options.opening_plies:
        openings = Openings(plies_max=options.opening_plies)
    return LearningConfig(
        selfplay=SelfplayConfig(
            search=SearchConfig(
                simulations=options.simulations,
                considered=options.considered,
                c_scale=options.c_scale,
                rescale=options.rescale,
            ),
            slots=options.slots,
            temperature=TemperatureSchedule(plies=options.temperature_plies),
            playout_caps=caps,
            openings=openings,
        ),
        learner=LearnerConfig(bf16=has_bfloat16(), average_decay=options.average_decay),
        preset=options.preset,
        window=PowerWindow(c=options.window_rows, b=options.window_growth),
        samples_per_row=options.samples_per_row,
        batch=options.batch,
        lr=options.lr,
        lr_steps=options.lr_steps,
        targets=Targets(
            value_mix=options.value_mix, value_decay=options.value_decay, surprise=options.surprise
        ),
    )


def train(options: argparse.Namespace) -> int:
    folder = options.out / f"seed{options.seed}"
    game = load_game(options.config)
    by_game = msgspec.structs.asdict(play_rules(options.config))
    by_game |= msgspec.structs.asdict(target_rules(options.config))
    by_game |= {"window_rows": base_rows(options.config), "window_growth": growth_of(options.config)}
    for name, value in by_game.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    told = {key: value for key, value in vars(options).items() if key not in NOT_SETTINGS}
    check_settings(folder / "settings.json", told)
    loop = LearningLoop(game, learning_config(options), seed=options.seed)
    spent_before = resume(loop, folder)
    stop = asked_to_stop()

    def spent() -> float:
        return spent_before + time.process_time()

    marks = sorted(
        {mark for mark in options.snapshots if spent_before < mark < options.cpu_s} | {options.cpu_s}
    )
    saved_s = spent()
    while marks and not stop:
        due = min(marks[0], saved_s + options.save_every_cpu_s)
        loop.advance(lambda due=due: bool(stop) or spent() >= due)
        report(folder, loop, cpu_s=spent())
        if spent() >= marks[0]:
            snapshot(loop, folder / f"{marks.pop(0):06.0f}.safetensors", cpu_s=spent())
        if spent() >= saved_s + options.save_every_cpu_s or stop or not marks:
            save(loop, folder, cpu_s=spent())
            saved_s = spent()
    return 3 if stop else 0


NOT_SETTINGS = {"command", "out", "cpu_s", "snapshots", "save_every_cpu_s"}


def check_settings(path: Path, told: dict[str, Any]) -> None:
    before = read_json(path) if path.exists() else {}
    for name in before.keys() & told.keys():
        if before[name] != told[name]:
            raise ConfigError(f"{path.parent} was begun with {name} {before[name]}, not {told[name]}")
    seal_json(path, told)


def asked_to_stop() -> list[int]:
    """Becomes non-empty when a signal asks to stop."""
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return asked


def resume(loop: LearningLoop, folder: Path) -> float:
    """Load the newest saved state; returns the processor time that it took."""
    states = sorted(folder.glob("state-*/done"))
    if not states:
        return 0.0
    loop.load(states[-1].parent)
    facts = read_json(states[-1])
    say(event="resumed", **facts)
    # This process pays for its own start again, as a run without a break would not.
    return float(facts["cpu_s"])


def save(loop: LearningLoop, folder: Path, *, cpu_s: float) -> None:
    target = folder / f"state-{cpu_s:09.1f}"
    loop.save(target)
    seal_json(target / "done", {"cpu_s": cpu_s, **loop.counts()})
    for other in folder.glob("state-*"):
        if other != target:
            shutil.rmtree(other)


def snapshot(loop: LearningLoop, path: Path, *, cpu_s: float) -> None:
    net = loop.network()
    notes = {"cpu_s": cpu_s, "seed": loop.seed, "preset": loop.config.preset, **loop.counts()}
    card = ModelCard(
        config=loop.game.key,
        architecture=net.architecture,
        rows_seen=loop.learner.steps * loop.config.batch,
        notes=notes,
    )
    save_model(net, card, path)
    say(event="snapshot", path=str(path), **notes)


def report(folder: Path, loop: LearningLoop, *, cpu_s: float) -> None:
    line = {"cpu_s": round(cpu_s, 1), **loop.counts()}
    with (folder / "progress.jsonl").open("a", encoding="utf8") as file:
        file.write(json.dumps(line) + "\n")
    say(event="progress", **line)


# Evaluation.


def evaluate(options: argparse.Namespace) -> int:
    results_path = options.out / "results.json"
    results = read_json(results_path) if results_path.exists() else []
    for path in sorted(options.out.glob("seed*/*.safetensors")):
        seed, cpu_s = int(path.parent.name.removeprefix("seed")), int(path.stem)
        if (options.seeds and seed not in options.seeds) or (
            options.snapshots and cpu_s not in options.snapshots
        ):
            continue
        settings = read_json(path.parent / "settings.json")
        simulations = options.simulations or settings["simulations"]
        game = load_game(settings["config"])
        for opponent in options.against:
            key = {"seed": seed, "cpu_s": cpu_s, "against": opponent, "simulations": simulations}
            known = [each for each in results if key.items() <= each.items()]
            if known and known[0]["games"] >= options.games:
                continue
            found = {**key, **match(path, game, opponent, simulations, options.games)}
            results = [each for each in results if each not in known] + [found]
            results.sort(key=lambda each: (each["against"], each["simulations"], each["cpu_s"], each["seed"]))
            seal_json(results_path, results)
            say(event="match", **found)
    summarize(results, options.out)
    return 0


def match(path: Path, game: Game, opponent: str, simulations: int, games: int) -> dict[str, Any]:
    net, card = load_model(path, config=game.key)
    play = play_rules(game.key)  # a network plays best with the search that it learned from
    config = SearchConfig(simulations=simulations, c_scale=play.c_scale, rescale=play.rescale)
    player = SearchPlayer("snapshot", game, NetEvaluator(net, game), config)
    if opponent == "solver":
        return moves_kept(game, player, read_positions())
    rival = opponent_player(opponent, game, str(card.notes.get("preset", "small")), simulations)
    plies = 0 if opponent in DRAWS_LOTS else 4
    began = time.process_time()
    played = play_match(
        game,
        [player, rival],
        MatchConfig(openings=max(1, games // game.players), seed=20_000, opening_plies=plies),
    )
    tally = played.tally
    low, high = tally.interval
    return {
        "score": round(tally.score, 4),
        "interval": [round(low, 4), round(high, 4)],
        "games": tally.games,
        "wins": tally.wins,
        "draws": tally.draws,
        "losses": tally.losses,
        "first_places": tally.first_places,
        "match_cpu_s": round(time.process_time() - began, 1),
    }


def opponent_player(opponent: str, game: Game, preset: str, simulations: int) -> Player:
    if opponent == "untrained":
        evaluator = NetEvaluator(build(game, preset, seed=0), game)
        return SearchPlayer("untrained", game, evaluator, SearchConfig(simulations=simulations))
    return parse_player(f"mcts:{simulations}" if opponent == "mcts" else opponent, game)


# Results.


def summarize(results: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Mean and spread over the seeds."""
    summary = over_seeds(results, by=("against", "simulations", "cpu_s"))
    seal_json(out / "summary.json", summary)
    return summary


def plot(options: argparse.Namespace) -> int:
    summary = summarize(read_json(options.out / "results.json"), options.out)
    series: dict[str, list[tuple[float, float]]] = {}
    bands: dict[str, list[tuple[float, float, float]]] = {}
    for each in summary:
        name = f"{each['against']} ({each['simulations']})"
        series.setdefault(name, []).append((each["cpu_s"], 100 * each["mean"]))
        bands.setdefault(name, []).append((each["cpu_s"], 100 * each["low"], 100 * each["high"]))
    config = read_json(next(options.out.glob("seed*/settings.json")))["config"]
    svg = line_plot(
        f"{config}: score against fixed opponents, mean and range of the seeds",
        series,
        x_label="processor seconds",
        y_label="%",
        bands=bands,
    )
    (options.out / "strength.svg").write_text(svg, encoding="utf8")
    for each in summary:
        say(**each)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
