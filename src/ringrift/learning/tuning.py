"""Searches for better parameters: their records, how they are kept, and how one is ordered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Engine, KeyValue, NewWork
from ringrift.errors import AlreadyExists, Conflict
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import ARCHITECTURE_FEEDBACK, is_stopped
from ringrift.runtime import Runtime
from ringrift.work.job.orders import INPUTS, OUT, JobOrder

# Records of searches, and when another may begin. Pure.


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


# In the key-value port one search is open at a time in the whole system, and the last ones have a record.


SEARCH_PREFIX = "tuning/run/"
OPEN_SEARCH = "tuning/open"
RUNS_MAX = 100


class TuningStore:
    """Reads and writes runs. The key of the open one is what keeps a second from beginning."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def runs(self) -> list[OptimizationRun]:
        """All that are kept, oldest first."""
        entries = await self._kv.entries(SEARCH_PREFIX)
        runs = [decode_entry(entry, OptimizationRun) for entry in entries]
        return sorted(runs, key=lambda run: (run.started_s, run.run_id))

    async def get(self, run_id: str) -> OptimizationRun | None:
        entry = await self._kv.get(SEARCH_PREFIX + run_id)
        return None if entry is None else decode_entry(entry, OptimizationRun)

    async def open_run(self) -> OptimizationRun | None:
        entry = await self._kv.get(OPEN_SEARCH)
        return None if entry is None else await self.get(entry.value.decode())

    async def begin(self, run: OptimizationRun) -> None:
        """Make *run* the open one. Raises `Conflict` if there is another.

        The record is written first: an open key without a record would keep everybody out for ever.
        """
        await self.put(run)
        try:
            await self._kv.create(OPEN_SEARCH, run.run_id.encode())
        except AlreadyExists:
            await self._kv.delete(SEARCH_PREFIX + run.run_id)
            raise Conflict("another search is under way") from None

    async def put(self, run: OptimizationRun) -> None:
        await self._kv.put(SEARCH_PREFIX + run.run_id, msgspec.json.encode(run))

    async def end(self, run: OptimizationRun) -> None:
        """Write how *run* ended, and let the next begin. Safe to repeat."""
        await self.put(run)
        entry = await self._kv.get(OPEN_SEARCH)
        if entry is not None and entry.value.decode() == run.run_id:
            await self._kv.delete(OPEN_SEARCH, revision=entry.revision)
        for old in (await self.runs())[:-RUNS_MAX]:
            if not old.status.is_open:
                await self._kv.delete(SEARCH_PREFIX + old.run_id)


# Ordering a search for better parameters: a record of it, and a work item that any worker may take.
#
# The process of the run and the command line order in the same way. Whoever orders, the coordinator of the
# run follows the search and writes what it showed into the facts.


NAME_DIGITS = 10
PRIORITY = 80  # above self-play, which always waits in line, and below all else that the loop needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What somebody wants to be searched."""

    kind: OptimizationType
    config: str
    reason: str = ""
    automatic: bool = False
    run_id: str | None = None
    params: dict[str, Any] = field(default_factory=dict)  # of the job, instead of its own defaults


async def order_search(
    engine: Engine, runtime: Runtime, search: Search, state: ConfigState | None, rules: LearningRules
) -> OptimizationRun:
    """Raises `Conflict` that says why none may begin now."""
    store, now_s = TuningStore(engine.kv), runtime.now_s()
    if why := why_not(await store.runs(), now_s, automatic=search.automatic):
        raise Conflict(why)
    order = tune_order(search.kind, search.config, state, rules, **search.params)
    if order is None:
        raise Conflict(f"{search.config} has no samples to train on yet")
    run = OptimizationRun(
        run_id=search.run_id or _new_name(search.kind, runtime),
        optimization_type=search.kind,
        config_key=search.config,
        reason=search.reason or "asked for",
        started_s=now_s,
        automatic=search.automatic,
        params=dict(order.params),
    )
    await store.begin(run)
    item = NewWork(
        id=run.run_id,
        kind="tune",
        payload=order.as_payload(),
        priority=PRIORITY,
        group=order.config,
        idempotency_key=run.run_id,
    )
    await engine.queue.add([item])
    return run


def _new_name(kind: OptimizationType, runtime: Runtime) -> str:
    """Short enough to be typed, and never one that was given before: an item of that name would be over."""
    digest = hashlib.sha256(runtime.new_id().encode()).hexdigest()
    return f"tune.{kind}.{digest[:NAME_DIGITS]}"
