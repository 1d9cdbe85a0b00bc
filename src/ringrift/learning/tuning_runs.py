"""Records of searches for better parameters, and when another may begin. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.learning.rules import LearningRules
from ringrift.learning.stages import ARCHITECTURE_FEEDBACK, is_stopped
from ringrift.learning.state import ConfigState
from ringrift.work.job_orders import INPUTS, OUT, JobOrder

COOLDOWN_S = 300.0
AUTOMATIC_PER_HOUR = 3
STALLED_LOSS, STALLED_RATING = 15, 10  # epochs, or refused candidates
TOPIC = "tuned"  # of the note that an improvement leaves among the facts
SIZES = ("small", "medium", "large")
HEURISTIC_BOARDS = ("hex8", "square8", "square19", "hexagonal")


class OptimizationType(StrEnum):
    """What a search looks for."""

    CMAES = "cmaes"  # weights of the heuristic player
    HALVING = "halving"  # training parameters, the worse ones ended early
    PBT = "pbt"  # training parameters, by a population
    NAS = "nas"  # the size of the network


class OptimizationStatus(StrEnum):
    """Where a search is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self in (OptimizationStatus.PENDING, OptimizationStatus.RUNNING)


class OptimizationRun(msgspec.Struct, frozen=True, kw_only=True):
    """One search. Its id is also the id of its work item."""

    run_id: str
    optimization_type: OptimizationType
    config_key: str
    reason: str
    started_s: float
    status: OptimizationStatus = OptimizationStatus.PENDING
    automatic: bool = False
    params: dict[str, Any] = {}
    generations: int = 0
    best_params: dict[str, Any] = {}
    best_score: float | None = None
    scores: dict[str, float] = {}
    evaluations: int = 0
    improved: bool = False
    ended_s: float | None = None
    error: str = ""


def why_not(runs: Sequence[OptimizationRun], now_s: float, *, automatic: bool) -> str:
    """Why no search may begin now; empty if one may."""
    running = next((run for run in runs if run.status.is_open), None)
    if running is not None:
        return f"{running.run_id} is under way"
    ended = max((run.ended_s for run in runs if run.ended_s is not None), default=None)
    if ended is not None and now_s - ended < COOLDOWN_S:
        return f"the last search ended {now_s - ended:.0f} s ago; {COOLDOWN_S:.0f} s lie between two"
    recent = sum(run.automatic and now_s - run.started_s < 3600.0 for run in runs)
    if automatic and recent >= AUTOMATIC_PER_HOUR:
        return f"{recent} searches began by themselves in the last hour"
    return ""


def kind_for_plateau(config: str, *, has_samples: bool) -> OptimizationType | None:
    """What to search when a config does not get better: how it is trained, or, before that, the heuristic."""
    if has_samples:
        return OptimizationType.HALVING
    board = config.rpartition("_")[0]
    return OptimizationType.CMAES if board in HEURISTIC_BOARDS else None


def tune_order(
    kind: OptimizationType, config: str, state: ConfigState | None, rules: LearningRules, **params: Any
) -> JobOrder | None:
    """The job of a search; None if there is nothing to train on yet."""
    given: dict[str, Any] = {"config": config, "kind": str(kind), "out": OUT, **params}
    if kind is OptimizationType.CMAES:
        return JobOrder(config=config, params=given)
    samples = None if state is None else state.newest_samples
    if samples is None:
        return None
    held = max(rules.hold_out, 0.05)
    in_use = rules if state is None else tuned_rules(state, rules)
    used: dict[str, Any] = {"lr": in_use.learning_rate, "batch": in_use.batch, "hold_out": held}
    if in_use.weight_decay is not None:
        used["weight_decay"] = in_use.weight_decay
    if kind is OptimizationType.NAS:  # the first is what the others have to beat
        used["presets"] = [in_use.preset, *(size for size in SIZES if _is_next(size, in_use.preset))]
    else:
        used["preset"] = in_use.preset
    place = {"samples": [f"{INPUTS}/samples.npz"]}
    return JobOrder(config=config, params={**used, **given, **place}, inputs={"samples.npz": samples.digest})


def _is_next(size: str, used: str) -> bool:
    return abs(SIZES.index(size) - SIZES.index(used)) == 1


def tuned_rules(state: ConfigState, rules: LearningRules) -> LearningRules:
    """The rules with what the newest searches that showed an improvement found for training.

    How often a row is seen stays a setting: the bucket has counted by it from the first row on. A size that
    was shown to be better holds until the setting is changed after it.
    """
    note = state.newest_note(TOPIC, OptimizationType.HALVING, OptimizationType.PBT)
    tuned = rules if note is None else _with(rules, note.details.get("best_params", {}))
    found = state.newest_note(TOPIC, OptimizationType.NAS)
    size = None if found is None else found.details.get("best_params", {}).get("preset")
    if found is None or size not in SIZES or found.details.get("instead_of", rules.preset) != rules.preset:
        return tuned
    if is_stopped(state, ARCHITECTURE_FEEDBACK):
        return tuned
    return msgspec.structs.replace(tuned, preset=size)


def _with(rules: LearningRules, found: dict[str, Any]) -> LearningRules:
    changes: dict[str, Any] = {}
    if isinstance(rate := found.get("lr"), int | float) and rate > 0:
        changes["learning_rate"] = float(rate)
    if isinstance(batch := found.get("batch"), int) and batch >= 1:
        changes["batch"] = batch
    if isinstance(decay := found.get("weight_decay"), int | float) and decay >= 0:
        changes["weight_decay"] = float(decay)
    if isinstance(share := found.get("window"), int | float) and 0 < share <= 1:
        changes["window_share"] = float(share)
    return msgspec.structs.replace(rules, **changes)
