"""Searches for better parameters, begun by hand or on a plateau: one at a time, as jobs, with a record of
each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.run_coordinator import ListeningCoordinator
from ringrift.engine.arguments import refuse
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import Engine, WorkItem, WorkState
from ringrift.engine.records import read_record
from ringrift.errors import ConfigError, Conflict
from ringrift.events.event import Announcement
from ringrift.learning.judging.ratings import WINDOW_POINTS, analyse
from ringrift.learning.loop import configs_of_the_run
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.tuning import (
    HEURISTIC,
    SEARCH_SETTINGS,
    STALLED_LOSS,
    STALLED_RATING,
    TOPIC,
    OptimizationRun,
    OptimizationStatus,
    OptimizationType,
    Search,
    TuningStore,
    kind_for_plateau,
    order_search,
    report_of_finding,
    subject_of,
    tune_order,
    tuned_rules,
    why_not,
)
from ringrift.work.coordinator import heard_by
from ringrift.work.job.protocol import JobReport, read_report
from ringrift.work.worker.records import RunningRecord, running_key

__all__ = [
    "OptimizationCoordinator",
    "OptimizationRun",
    "OptimizationStatus",
    "OptimizationType",
    "async_trigger",
    "get_optimization_coordinator",
    "reset_optimization_coordinator",
    "trigger_cmaes",
    "trigger_nas",
    "trigger_pbt",
    "tune_order",
    "tuned_rules",
    "why_not",
    "wire_optimization_events",
]


# What is told of a search, as events of the catalog.


ARCHITECTURE = "architecture"  # of the notes that a finished comparison of sizes leaves
_KNOBS = ("lr", "batch", "weight_decay", "window", "samples_per_row", "preset", *SEARCH_SETTINGS)


def triggered_events(run: OptimizationRun) -> list[Announcement]:
    about = {**_about(run), "reason": run.reason}
    if run.optimization_type is OptimizationType.CMAES:
        sizes = {"generations": "generations", "population": "population_size"}
        given = {field: run.params[name] for name, field in sizes.items() if name in run.params}
        used = {name: run.params[name] for name in SEARCH_SETTINGS if name in run.params}
        current = {"current_params": used} if used else {}
        return [("CMAES_TRIGGERED", {**about, **current, **given})]
    if run.optimization_type is OptimizationType.NAS:
        space = {"presets": list(run.params.get("presets", ()))}
        return [("NAS_TRIGGERED", {**about, "search_space": space})]
    return []


def started_events(run: OptimizationRun) -> list[Announcement]:
    if run.optimization_type is OptimizationType.NAS:
        return [("NAS_STARTED", _about(run))]
    if run.optimization_type is OptimizationType.PBT:
        return [("PBT_STARTED", {**_about(run), "population_size": int(run.params.get("population", 0))})]
    return []


def generation_events(run: OptimizationRun, generations: Iterable[Mapping[str, Any]]) -> list[Announcement]:
    names = {OptimizationType.NAS: "NAS_GENERATION_COMPLETE", OptimizationType.PBT: "PBT_GENERATION_COMPLETE"}
    name = names.get(run.optimization_type)
    if name is None:
        return []
    return [
        (
            name,
            {**_about(run), "generation": int(each["generation"]), "best_score": float(each["best_score"])},
        )
        for each in generations
    ]


def ended_events(run: OptimizationRun) -> list[Announcement]:
    """The end of a search that found something, and the parameters that change by it."""
    score = run.best_score or 0.0
    best = {"best_params": run.best_params, "best_score": score}
    events: list[Announcement] = []
    if run.optimization_type is OptimizationType.CMAES:
        events.append(("CMAES_COMPLETED", {**_about(run), **best, "generations": run.generations}))
    elif run.optimization_type is OptimizationType.PBT:
        events.append(("PBT_COMPLETED", {**_about(run), **best, "generations": run.generations}))
    elif run.optimization_type is OptimizationType.NAS:
        found = {"architecture": run.best_params, "score": score}
        events.append(("NAS_BEST_ARCHITECTURE", {**_about(run), **found}))
        events.append(
            ("NAS_COMPLETED", {**_about(run), "best_architecture": run.best_params, "best_score": score})
        )
    return events + _changes(run)


def _changes(run: OptimizationRun) -> list[Announcement]:
    """What was shown to be better than what is in use, and is used from now on."""
    if not run.improved or subject_of(run) == HEURISTIC:
        return []
    about = {"config_key": run.config_key, "optimizer": str(run.optimization_type), "reason": run.run_id}
    return [
        (
            "HYPERPARAMETER_UPDATED",
            {**about, "param_name": name, "old_value": run.params.get(name, ""), "new_value": new},
        )
        for name, new in run.best_params.items()
        if name in _KNOBS and new != run.params.get(name)
    ]


def _about(run: OptimizationRun) -> dict[str, Any]:
    return {"config_key": run.config_key, "run_id": run.run_id}


# A search is a work item of the kind `tune`, which a worker runs like any other. The job itself compares what
# it found with what is in use; only an improvement that was shown is written into the facts of the config,
# where `tuned_rules` finds it.


log = structlog.get_logger()

CHANGES_KEPT = 100
_TRIGGERS = {"CMAES_TRIGGERED": OptimizationType.CMAES, "NAS_TRIGGERED": OptimizationType.NAS}
_WORK = ("WORK_STARTED", "WORK_COMPLETED", "WORK_FAILED", "WORK_CANCELLED", "TASK_HEARTBEAT")


class OptimizationCoordinator(ListeningCoordinator):
    """Begins searches, on demand or on a plateau, and tells how they go."""

    component: ClassVar[str] = "optimization_coordinator"
    emits: ClassVar[tuple[str, ...]] = (
        "CMAES_COMPLETED",
        "CMAES_TRIGGERED",
        "HYPERPARAMETER_UPDATED",
        "NAS_BEST_ARCHITECTURE",
        "NAS_COMPLETED",
        "NAS_GENERATION_COMPLETE",
        "NAS_STARTED",
        "NAS_TRIGGERED",
        "PBT_COMPLETED",
        "PBT_GENERATION_COMPLETE",
        "PBT_STARTED",
    )

    def __init__(
        self, *, engine: Callable[[], Awaitable[Engine]] = get_engine, automatic: bool = True, **parts: Any
    ) -> None:
        super().__init__(**parts)
        self._engine, self.automatic = engine, automatic
        self._losses: dict[str, deque[float]] = {}
        self.parameter_changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_KEPT)
        self.last_refusal = ""

    def hears(self) -> tuple[str, ...]:
        return (*heard_by(self.component), *_WORK)

    # --- what it is asked -----------------------------------------------------------------------------------

    async def begin(
        self,
        kind: OptimizationType | str,
        config: str | None = None,
        reason: str = "",
        *,
        automatic: bool = False,
        run_id: str | None = None,
        **params: Any,
    ) -> OptimizationRun:
        """Order a search, for the config that waits longest for one if none is named.

        Raises `Conflict` that says why none may begin now, `ConfigError` for what no search can do and for a
        config that is not learned here.
        """
        if kind not in tuple(OptimizationType):
            refuse("kind", kind, f"one of {', '.join(OptimizationType)}")
        engine = await self._engine()
        # First: a search that has ended unnoticed would count as open and refuse this one.
        await self.refresh()
        configs = await configs_of_the_run(engine.kv)
        config = await self._next_config(engine, configs) if config in (None, "") else config
        search = Search(
            kind=OptimizationType(kind),
            config=config,
            reason=reason,
            automatic=automatic,
            run_id=run_id,
            params=params,
            own_program=bool(get_settings().job("tune").command),
        )
        # Nobody would take in what it finds, and until its end no other search may begin.
        if configs and config not in configs:
            raise ConfigError(f"{config!r} is not learned here; there are {', '.join(configs)}")
        # The same in every process: of a run that is not in this one the store knows.
        known = self._situations.loop or await asyncio.to_thread(self._answers.run)
        if known is None or config not in known.configs():
            state, rules = None, configured_rules(get_settings())
        else:
            state, rules = known.state(config), known.rules
        run = await order_search(engine, self._runtime, search, state, rules)
        await self.tell(triggered_events(run))
        return run

    async def _next_config(self, engine: Engine, configs: Sequence[str]) -> str:
        """The config of the run whose last search began first, or that has had none."""
        if not configs:
            raise ConfigError("nothing is learned in this data folder yet; name a config to search for")
        last = {run.config_key: run.started_s for run in await TuningStore(engine.kv).runs()}
        return min(configs, key=lambda config: last.get(config, 0.0))

    async def refresh(self) -> OptimizationRun | None:
        """Look how the open search is, and tell what is new; returns it as it is now."""
        engine = await self._engine()
        store = TuningStore(engine.kv)
        run = await store.open_run()
        if run is None:
            return None
        item = await engine.queue.get(run.run_id)
        if item is None:  # a crash came between the record and the item
            return await self._end(store, run, error="it was never queued")
        if item.state is WorkState.CLAIMED:
            return await self._follow(engine, store, run)
        if item.state in (WorkState.DONE, WorkState.DEAD, WorkState.CANCELLED):
            return await self._take_in(store, run, item)
        return run

    async def runs(self) -> list[OptimizationRun]:
        return await TuningStore((await self._engine()).kv).runs()

    async def cancel(self, run_id: str, *, reason: str = "asked for") -> bool:
        """End an open search; False if it is not open."""
        cancelled = await (await self._engine()).queue.cancel(run_id, reason=reason)
        await self.refresh()
        return cancelled

    # --- events ----------------------------------------------------------------------------------------

    async def _on_event(self, event_type: str, payload: Mapping[str, Any], /) -> None:
        config = str(payload.get("config_key") or "")
        if event_type in _TRIGGERS:
            await self._triggered_elsewhere(_TRIGGERS[event_type], config, payload)
        elif event_type == "PLATEAU_DETECTED":
            if int(payload.get("epochs_since_improvement") or 0) >= STALLED_RATING:
                await self._begin_by_itself(config, str(payload.get("recommendation") or "plateau"))
        elif event_type == "TRAINING_PROGRESS":
            await self._training_went_on(config, payload)
        elif event_type == "HYPERPARAMETER_UPDATED":
            self.parameter_changes.append(dict(payload))
        # Work events come for every job of the cluster; only a search is worth a look into the store.
        elif event_type not in _WORK or str(payload.get("work_id") or payload.get("task_id")).startswith(
            "tune."
        ):
            await self.refresh()

    async def _triggered_elsewhere(
        self, kind: OptimizationType, config: str, payload: Mapping[str, Any]
    ) -> None:
        """Somebody published a request for a search; one that another coordinator began is known already."""
        run_id = str(payload["run_id"])
        if await TuningStore((await self._engine()).kv).get(run_id) is not None:
            return
        sizes = {name: payload.get(field) for name, field in _SIZES.items()}
        wanted = {name: size for name, size in sizes.items() if size is not None}
        # It becomes the id of the work item, and later events of a search are known by that prefix.
        own_id = run_id if run_id.startswith("tune.") else f"tune.{run_id}"
        await self._try(kind, config, str(payload.get("reason") or ""), run_id=own_id, **wanted)

    async def _training_went_on(self, config: str, payload: Mapping[str, Any]) -> None:
        loss = payload.get("val_loss", payload.get("train_loss"))
        if not isinstance(loss, int | float):
            return
        window = self._losses.setdefault(config, deque(maxlen=WINDOW_POINTS))
        window.append(float(loss))
        stalled = analyse(list(window), higher_is_better=False).points_since_best
        if stalled >= STALLED_LOSS:
            # One stall asks once: the next request needs a window of its own.
            window.clear()
            await self._begin_by_itself(config, f"no better loss for {stalled} looks")

    async def _begin_by_itself(self, config: str, reason: str) -> None:
        situation = self._situations.get(config)
        if not self.automatic or situation is None:
            return
        state = situation.state
        kind = kind_for_plateau(
            config,
            has_samples=state.newest_samples is not None,
            has_champion=state.champion is not None,
            last=await self._last_kind(config),
        )
        if kind is not None:
            await self._try(kind, config, reason, automatic=True)

    async def _last_kind(self, config: str) -> OptimizationType | None:
        runs = await TuningStore((await self._engine()).kv).runs()
        return next((run.optimization_type for run in reversed(runs) if run.config_key == config), None)

    async def _try(self, kind: OptimizationType, config: str, reason: str, **more: Any) -> None:
        try:
            await self.begin(kind, config, reason, **more)
        except (Conflict, ConfigError) as refused:
            self.last_refusal = str(refused)
            log.info("tuning.not_begun", kind=str(kind), config=config, why=str(refused))

    # --- how a search goes -----------------------------------------------------------------------------

    async def _follow(self, engine: Engine, store: TuningStore, run: OptimizationRun) -> OptimizationRun:
        events = []
        now = run
        if run.status is OptimizationStatus.PENDING:
            now = msgspec.structs.replace(run, status=OptimizationStatus.RUNNING)
            events += started_events(now)
        record = await read_record(engine.kv, running_key(run.run_id), RunningRecord)
        if record is not None:
            extra = record.extra
            generation, score = extra.get("generation"), extra.get("best_score")
            if (
                isinstance(generation, int)
                and isinstance(score, int | float)
                and generation > now.generations
            ):
                now = msgspec.structs.replace(now, generations=generation, best_score=float(score))
                events += generation_events(now, [{"generation": generation, "best_score": float(score)}])
        if now != run:
            await store.put(now)
            await self.tell(events)
        return now

    async def _take_in(self, store: TuningStore, run: OptimizationRun, item: WorkItem) -> OptimizationRun:
        if item.state is not WorkState.DONE:
            cancelled = item.state is WorkState.CANCELLED
            status = OptimizationStatus.CANCELLED if cancelled else OptimizationStatus.FAILED
            return await self._end(store, run, status=status, error=item.error or str(item.state))
        report = read_report(item.result or {})
        if "best_params" not in report.fields:
            return await self._end(store, run, error="the job ended without a finding")
        ended = _with_finding(run, report, self._runtime.now_s())
        await self._note(ended)
        later = [
            each for each in report.fields.get("generations", []) if each["generation"] > run.generations
        ]
        await store.end(ended)
        # A short job ends between two looks, so its start and its generations are told with its end.
        before = [] if run.status is OptimizationStatus.RUNNING else started_events(ended)
        await self.tell([*before, *generation_events(ended, later), *ended_events(ended)])
        return ended

    async def _end(
        self,
        store: TuningStore,
        run: OptimizationRun,
        *,
        error: str,
        status: OptimizationStatus = OptimizationStatus.FAILED,
    ) -> OptimizationRun:
        ended = msgspec.structs.replace(run, status=status, error=error, ended_s=self._runtime.now_s())
        await store.end(ended)
        log.warning("tuning.ended_without_a_finding", run=run.run_id, status=str(status), error=error)
        return ended

    async def _note(self, run: OptimizationRun) -> None:
        """Write what was shown into the facts of the config, before the record says that it is done."""
        if run.optimization_type is OptimizationType.NAS and run.scores:
            text = f"sizes of the network were compared: {run.best_params.get('preset')} is best"
            found = {"best_params": run.best_params, "best_score": run.best_score, "scores": run.scores}
            about = {"run_id": run.run_id, "kind": str(run.optimization_type)}
            await self._situations.note(run.config_key, ARCHITECTURE, text, **about, **found)
        situation, loop = self._situations.get(run.config_key), self._situations.loop
        if run.improved and subject_of(run) != HEURISTIC and situation is not None and loop is not None:
            text, details = report_of_finding(situation.state, run, loop.rules.preset)
            await self._situations.note(run.config_key, TOPIC, text, **details)


_SIZES = {"generations": "generations", "population": "population_size"}


def _with_finding(run: OptimizationRun, report: JobReport, now_s: float) -> OptimizationRun:
    fields = report.fields
    return msgspec.structs.replace(
        run,
        status=OptimizationStatus.COMPLETED,
        best_params=dict(fields["best_params"]),
        best_score=float(fields["best_score"]),
        scores=dict(fields.get("scores", {})),
        evaluations=int(fields.get("evaluations", 0)),
        generations=len(fields.get("generations", ())),
        improved=bool(fields.get("improved", False)),
        ended_s=now_s,
    )


# One coordinator per process, and searches begun by hand.


ANSWER_S = 30.0


def get_optimization_coordinator(**parts: Any) -> OptimizationCoordinator:
    """Return the coordinator of this process; other *parts* than it was made with are a `ConfigError`."""
    return OptimizationCoordinator.get_instance(**parts)


reset_optimization_coordinator = OptimizationCoordinator.reset_instance
wire_optimization_events = OptimizationCoordinator.wired


async def async_trigger(
    kind: OptimizationType | str, config_key: str | None = None, reason: str = "", **params: Any
) -> OptimizationRun | None:
    """Order a search; None, with the reason in the log, if none may begin now.

    Without a *config_key* it is for the config of the run that waits longest for a search.
    """
    try:
        return await get_optimization_coordinator().begin(kind, config_key, reason, **params)
    except Conflict as refused:
        log.warning("tuning.refused", kind=str(kind), config=config_key, why=str(refused))
        return None


@blocking(timeout_s=ANSWER_S)
async def trigger_cmaes(
    config_key: str | None = None, reason: str = "", **params: Any
) -> OptimizationRun | None:
    """Search for better settings of the search with which the champion plays, from code that is not async.

    Before there is a champion, or with `subject="heuristic"`, for weights of the heuristic player, which
    change nothing in the run.
    """
    return await async_trigger(OptimizationType.CMAES, config_key, reason, **params)


@blocking(timeout_s=ANSWER_S)
async def trigger_nas(
    config_key: str | None = None, reason: str = "", **params: Any
) -> OptimizationRun | None:
    """Search for the size of the network, from code that is not async."""
    return await async_trigger(OptimizationType.NAS, config_key, reason, **params)


@blocking(timeout_s=ANSWER_S)
async def trigger_pbt(
    config_key: str | None = None, reason: str = "", **params: Any
) -> OptimizationRun | None:
    """Search for training parameters by a population, from code that is not async."""
    return await async_trigger(OptimizationType.PBT, config_key, reason, **params)
