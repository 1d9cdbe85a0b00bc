"""Can the network learn: one batch by heart, and from some games what others are like?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game
from ringrift.jobs.diagnose_symptoms import Symptom
from ringrift.jobs.training.learner import Learner, LearnerConfig
from ringrift.jobs.training.rows import Numbers, RowSource, TrainingBatch, TrainingRows, make_batch, some_rows
from ringrift.network.architecture import Preset
from ringrift.network.model import ResidualNet, build

OVERFIT_ROWS = 64
OVERFIT_STEPS = 300
OVERFIT_LEFT = 0.15  # of the loss at the start that may be left
RATE = 2e-3
LEARN_BATCH = 128
LEARN_STEPS = 150
LEARN_ROWS_MIN = LEARN_BATCH * LEARN_STEPS  # with fewer, rows are learned by heart, and true labels fail too
LEARN_GAIN = 0.02  # below the loss of one who knows nothing
HELD_ROWS_MAX = 4096

StopPoint = Callable[[], None]


@dataclass(frozen=True, slots=True)
class HeldLosses:
    """Losses on held-out rows, of a network and of one who knows nothing of the position."""

    policy: float  # above the entropy of the targets
    value: float
    blind_policy: float
    blind_value: float

    @property
    def gains(self) -> tuple[float, float]:
        """The share of the blind loss that is gone, for policy and value; 0 where there is none to lose."""
        return (
            1 - self.policy / self.blind_policy if self.blind_policy > 1e-6 else 0.0,
            1 - self.value / self.blind_value if self.blind_value > 1e-6 else 0.0,
        )


def check_overfit(
    game: Game, rows: TrainingRows, *, preset: str | Preset, seed: int, stop_point: StopPoint = lambda: None
) -> Symptom:
    """Train a fresh network on one batch until it knows it by heart; one that cannot will learn nothing."""
    batch = make_batch(game, some_rows(rows, _distinct(rows)[:OVERFIT_ROWS]))
    learner = Learner(build(game, preset, seed=seed), LearnerConfig(average_decay=0.0, weight_decay=0.0))
    first = left = float("inf")
    steps = 0
    for steps in range(1, OVERFIT_STEPS + 1):
        stop_point()
        policy, value, entropy = learner.step(batch, RATE).tolist()
        left = policy - entropy + value
        first = min(first, left) if steps == 1 else first
        if left < OVERFIT_LEFT * first / 2:
            break
    share = left / first if first > 1e-6 else 0.0
    evidence = {
        "rows": len(batch.weights),
        "steps": steps,
        "loss_first": round(first, 4),
        "loss": round(left, 4),
    }
    if share <= OVERFIT_LEFT:
        text = f"a fresh network learns {len(batch.weights)} positions by heart in {steps} steps"
        return Symptom(check="overfit", level="fine", config=game.key, text=text, evidence=evidence)
    return Symptom(
        check="overfit",
        level="problem",
        config=game.key,
        text=f"a fresh network cannot learn {len(batch.weights)} positions by heart: {share:.0%} of "
        f"the loss is left after {steps} steps",
        advice="The observation hides what the targets depend on, targets contradict each other, or "
        "gradients do not flow.",
        evidence=evidence,
    )


def check_labels(
    game: Game,
    source: RowSource,
    split: tuple[Numbers, Numbers],
    *,
    preset: str | Preset,
    seed: int,
    stop_point: StopPoint = lambda: None,
) -> Symptom | None:
    """Learn from some games and look at others: shuffled labels teach nothing. None with too few rows."""
    train, held = split
    if len(train) < LEARN_ROWS_MIN or len(held) < OVERFIT_ROWS:
        return None
    learner = Learner(build(game, preset, seed=seed), LearnerConfig(average_decay=0.9))
    rng = np.random.default_rng(seed)
    for _ in range(LEARN_STEPS):
        stop_point()
        rows = np.sort(rng.choice(train, LEARN_BATCH, replace=False))
        learner.step(make_batch(game, source.take(rows)), RATE)
    found = held_losses(game, source, held, learner.averaged(), train=train)
    policy, value = found.gains
    evidence = {"policy_gain": round(policy, 4), "value_gain": round(value, 4), "rows": len(held)}
    if policy >= LEARN_GAIN or value >= LEARN_GAIN:
        text = (
            f"{LEARN_STEPS} steps on some games explain others: policy by {policy:.0%}, value by {value:.0%}"
        )
        return Symptom(check="labels", level="fine", config=game.key, text=text, evidence=evidence)
    return Symptom(
        check="labels",
        level="problem",
        config=game.key,
        text="what some games teach says nothing about others: targets do not follow from positions",
        advice="Look for targets that were shuffled, shifted by a move, or given to the wrong seat.",
        evidence=evidence,
    )


def held_losses(
    game: Game, source: RowSource, held: Numbers, net: ResidualNet, *, train: Numbers
) -> HeldLosses:
    """Compare *net* on held-out rows with a uniform policy and the mean value of the training rows."""
    some = held[:: max(1, len(held) // HELD_ROWS_MAX)]
    mean = make_batch(game, source.take(train[:: max(1, len(train) // HELD_ROWS_MAX)])).values.mean(axis=0)
    judge, sums, total = Learner(net, LearnerConfig()), np.zeros(4), 0.0
    for start in range(0, len(some), 256):
        batch = make_batch(game, source.take(some[start : start + 256]))
        policy, value, entropy = judge.judge(judge.net, batch).tolist()
        weight = float(batch.weights.sum())
        blind = _weighted(np.log(batch.legal.sum(axis=1)), batch) - entropy
        blind_value = _weighted(((batch.values - mean) ** 2).mean(axis=1), batch)
        sums += weight * np.array([policy - entropy, value, blind, blind_value])
        total += weight
    return HeldLosses(*(sums / max(total, 1e-9)).tolist())


def _weighted(losses: npt.NDArray[np.floating], batch: TrainingBatch) -> float:
    return float(np.average(losses, weights=batch.weights))


def _distinct(rows: TrainingRows) -> Numbers:
    """One row for each position, in order: a position with two answers cannot be learned by heart."""
    _, first = np.unique(rows.states, axis=0, return_index=True)
    return np.sort(first).astype(np.int64)
