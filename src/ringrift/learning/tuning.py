"""Searches for better parameters: their records, how they are kept, how one is ordered, and how what it found
is used, kept or dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from types import UnionType
from typing import Annotated, Any, Literal

import msgspec

from ringrift.decoding import convert_to
from ringrift.engine.arguments import check_flag, check_name, check_text
from ringrift.engine.limits import ERROR_CHARS_MAX
from ringrift.engine.ports import Engine, KeyValue, NewWork
from ringrift.engine.records import KvRecords
from ringrift.errors import AlreadyExists, ConfigError, Conflict
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.records import Match, Model, ModelState
from ringrift.learning.facts.results import WEIGHTS_SUFFIX
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging import promotion
from ringrift.learning.plan.rules import LearningRules, play_rules
from ringrift.learning.plan.stages import ARCHITECTURE_FEEDBACK, is_stopped
from ringrift.learning.plan.training_data import window_files
from ringrift.runtime import Runtime
from ringrift.work.job.protocol import INPUTS, OUT, USER_PROGRAM, JobOrder
from ringrift.work.shares import board_and_players

# Records of searches, and when another may begin. Pure.


COOLDOWN_S = 300.0
AUTOMATIC_PER_HOUR = 3
STALLED_LOSS, STALLED_RATING = 15, 10  # epochs, or refused candidates
TOPIC = "tuned"  # of the note that an improvement leaves among the facts
SIZES = ("small", "medium", "large")
# How often a training of a search sees each row, and how many in all: a search is many trainings.
ROWS_SEEN, ROWS_SEEN_MAX = 4, 400_000
HEURISTIC_BOARDS = ("hex8", "square8", "square19", "hexagonal")


class OptimizationType(StrEnum):
    """What a search looks for."""

    CMAES = "cmaes"  # settings of the search that plays; before there is a champion, weights of the heuristic
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


def kind_for_plateau(
    config: str, *, has_samples: bool, has_champion: bool = False, last: OptimizationType | None = None
) -> OptimizationType | None:
    """What to search when a config does not get better: how it is trained and, in turn, how its champion
    searches; before there is anything to train on, the heuristic.
    """
    if has_samples:
        is_turn = has_champion and last is OptimizationType.HALVING
        return OptimizationType.CMAES if is_turn else OptimizationType.HALVING
    return OptimizationType.CMAES if _has_heuristic(config) else None


def _has_heuristic(config: str) -> bool:
    return board_and_players(config)[0] in HEURISTIC_BOARDS


def tune_order(
    kind: OptimizationType, config: str, state: ConfigState | None, rules: LearningRules, **params: Any
) -> JobOrder | None:
    """The job of a search; None if there is nothing yet that it could search."""
    given: dict[str, Any] = {"config": config, "kind": str(kind), "out": OUT, **params}
    if kind is OptimizationType.CMAES:
        champion = None if state is None else state.models.get(state.champion or "")
        subject = given.get("subject")
        # A program of the user's own searches as it likes.
        is_ours = rules.selfplay_program != USER_PROGRAM
        if state is not None and champion is not None and is_ours and subject != HEURISTIC:
            return _search_order(state, champion, rules, given)
        return JobOrder(config=config, params=given) if _has_heuristic(config) and subject != SEARCH else None
    newest = None if state is None else state.newest_samples
    if state is None or newest is None:
        return None
    files = window_files(state, rules) or [newest]
    held = max(rules.hold_out, 0.05)
    in_use = tuned_rules(state, rules)
    used: dict[str, Any] = {"lr": in_use.learning_rate, "batch": in_use.batch, "hold_out": held}
    if in_use.weight_decay is not None:
        used["weight_decay"] = in_use.weight_decay
    if kind is OptimizationType.NAS:  # the first is what the others have to beat
        used["presets"] = [in_use.preset, *(size for size in SIZES if _is_next(size, in_use.preset))]
    else:
        used["preset"] = in_use.preset
    used["rows"] = min(ROWS_SEEN_MAX, ROWS_SEEN * sum(samples.rows for samples in files))
    inputs = {f"samples-{number:03d}.npz": samples.digest for number, samples in enumerate(files[:-1])}
    inputs["samples.npz"] = files[-1].digest
    place = {"samples": [f"{INPUTS}/{name}" for name in inputs]}
    return JobOrder(config=config, params={**used, **given, **place}, inputs=inputs)


def _search_order(
    state: ConfigState, champion: Model, rules: LearningRules, given: dict[str, Any]
) -> JobOrder:
    """Tune the search of *champion*, with as many simulations as games are played with now."""
    simulations = next(
        (shard.simulations for shard in reversed(state.shards.values()) if shard.model and shard.simulations),
        rules.simulations,
    )
    play = play_rules(state.config)
    used = {**SEARCH_FIRST, "c_scale": play.c_scale, "rescale": play.rescale, **tuned_search(state)}
    # Another search for the same champion plays other games.
    used |= {"simulations": simulations, "seed": state.facts}
    model = {"subject": SEARCH, "model": f"{INPUTS}/champion{WEIGHTS_SUFFIX}"}
    return JobOrder(
        config=state.config,
        params={**SEARCH_EFFORT, **used, **given, **model},
        inputs={f"champion{WEIGHTS_SUFFIX}": champion.digest, "champion.json": champion.card},
    )


def _is_next(size: str, used: str) -> bool:
    return abs(SIZES.index(size) - SIZES.index(used)) == 1


def subject_of(run: OptimizationRun) -> str:
    """What a run changes if it finds something better: training, size, search, or only the heuristic."""
    if run.optimization_type is OptimizationType.CMAES:
        return SEARCH if run.params.get("subject") == SEARCH else HEURISTIC
    return SIZE if run.optimization_type is OptimizationType.NAS else TRAINING


# What a search found is used from the next order on, and is on trial: a candidate made with it that becomes
# champion keeps it, candidates that lose drop it. One rule for all kinds, decided by the plan, as a fact.


SEARCH, HEURISTIC, TRAINING, SIZE = "search", "heuristic", "training", "size"
# Of one subject only the newest finding is in force.
KINDS: Mapping[str, tuple[OptimizationType, ...]] = {
    SEARCH: (OptimizationType.CMAES,),
    TRAINING: (OptimizationType.HALVING, OptimizationType.PBT),
    SIZE: (OptimizationType.NAS,),
}
# Settings of the search that a finding may change, and between what. The job searches within the same.
SEARCH_SETTINGS: Mapping[str, tuple[type | UnionType, float, float]] = {
    "c_scale": (int | float, 1e-3, 10.0),
    "c_visit": (int | float, 0.5, 1000.0),
    "considered": (int, 2, 64),
}
# What self-play does by itself where no rule says otherwise.
SEARCH_FIRST = {"c_visit": 50.0, "considered": 16}
# Differences between settings are small, so a match of 400 games decides; the search before it is a sixth of
# what one for twenty weights takes.
SEARCH_EFFORT = {"population": 6, "generations": 5, "games": 40, "verify_games": 400}
TRIAL_REFUSED_MAX = STALLED_RATING  # candidates: as many without a promotion begin a search by themselves


def tuned_rules(state: ConfigState, rules: LearningRules) -> LearningRules:
    """The rules with what the newest searches that showed an improvement found for training.

    How often a row is seen stays a setting: the bucket has counted by it from the first row on. A size that
    was shown to be better holds until the setting is changed after it.
    """
    tuned = _with(rules, _found(state, TRAINING))
    note = state.newest_note(TOPIC, *KINDS[SIZE])
    size = _found(state, SIZE).get("preset")
    if note is None or size not in SIZES or note.details.get("instead_of", rules.preset) != rules.preset:
        return tuned
    if is_stopped(state, ARCHITECTURE_FEEDBACK):
        return tuned
    return msgspec.structs.replace(tuned, preset=size)


def tuned_search(state: ConfigState) -> dict[str, float]:
    """The settings of the search that the next games are played with, where a search found better ones.

    Judged matches keep the settings that they began with: ratings of other searches would be another pool.
    """
    found = _found(state, SEARCH)
    return {
        name: found[name]
        for name, (kind, low, high) in SEARCH_SETTINGS.items()
        if isinstance(found.get(name), kind)
        and not isinstance(found[name], bool)
        and low <= found[name] <= high
    }


def _found(state: ConfigState, subject: str) -> dict[str, Any]:
    note = state.newest_note(TOPIC, *KINDS[subject])
    found = {} if note is None else note.details.get("best_params")
    return found if isinstance(found, dict) else {}


def report_of_finding(state: ConfigState, run: OptimizationRun, preset: str) -> tuple[str, dict[str, Any]]:
    """Text and details of the note that puts in force what *run* found; *preset* is the size of the settings.

    It says what was in force before: that is what comes back if the finding is dropped.
    """
    subject, best = subject_of(run), run.best_params
    texts = {
        SEARCH: f"the next games are searched with {in_words(best)}",
        TRAINING: f"a search by {run.optimization_type} found better training parameters",
        SIZE: f"the next networks are {best.get('preset')}",
    }
    details: dict[str, Any] = {
        "run_id": run.run_id,
        "kind": str(run.optimization_type),
        "best_params": best,
        "best_score": run.best_score,
        "before": _found(state, subject),
        **({"instead_of": preset} if subject == SIZE else {}),
    }
    shown = (
        "" if subject == TRAINING else f": {run.best_score or 0.0:.0%} in a match with what was used before"
    )
    return f"{texts[subject]}{shown}", details


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a finding stands by the candidates that were made with it."""

    subject: str
    note: Noted
    kept_by: int | None = None  # the number of the model that became champion
    refused: int = 0  # judged since then, and no champion
    worse: int = 0  # the last of them in a row that were shown to be worse

    @property
    def is_in_force(self) -> bool:
        return not is_drop(self.note)

    def why_dropped(self, worse_max: int) -> str:
        """Why it is to be dropped now; empty if it is not."""
        if self.kept_by is not None or not self.is_in_force:
            return ""
        # A size begins from nothing: its first networks lose to one that saw every row of the run.
        if self.worse >= worse_max and self.subject != SIZE:
            return f"{self.worse} candidates in a row made with it were shown to be worse than the champion"
        if self.refused >= TRIAL_REFUSED_MAX:
            return f"none of {self.refused} candidates made with it was shown to be better than the champion"
        return ""

    def in_words(self) -> str:
        if not self.is_in_force:
            return self.note.text
        standing = f"on trial; refused candidates that were made with it: {self.refused}"
        if self.kept_by is not None:
            standing = f"kept, since model {self.kept_by} became champion with it"
        return f"{self.note.text} ({standing})"


def trials(state: ConfigState) -> list[Trial]:
    """What the newest search of each subject came to, the newest first."""
    notes = {subject: state.newest_note(TOPIC, *kinds) for subject, kinds in KINDS.items()}
    found = [_trial(state, subject, note) for subject, note in notes.items() if note is not None]
    return sorted(found, key=lambda each: -each.note.at_s)


def dropped_finding(found: Sequence[Trial], rules: LearningRules, now_s: float) -> Noted | None:
    """Drop the newest finding that candidates speak against; what was in force before it is again."""
    for trial in found:
        if not (why := trial.why_dropped(rules.recover_after)):
            continue
        details = trial.note.details
        before = details.get("before") or {}
        back = in_words(before) if before else "what the settings say"
        kept: dict[str, Any] = {
            name: details[name] for name in ("run_id", "kind", "instead_of") if name in details
        }
        return Noted(
            at_s=now_s,
            topic=TOPIC,
            text=f"{in_words(details.get('best_params', {}))} is dropped: {why}; back to {back}",
            details={**kept, "best_params": before, "dropped": details.get("best_params", {}), "reason": why},
        )
    return None


def in_words(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in params.items())


def _trial(state: ConfigState, subject: str, note: Noted) -> Trial:
    if is_drop(note):
        return Trial(subject=subject, note=note)
    for change in state.promotions:
        model = state.models[change.model]
        is_up = model.state in (ModelState.PRODUCTION, ModelState.SUPERSEDED)
        if is_up and _made_with(state, model, subject, note):
            return Trial(subject=subject, note=note, kept_by=model.number)
    # Candidates speak against the newest finding first, and against the others only after it was dropped.
    drops = (each.at_s for each in state.newest_notes.values() if each.topic == TOPIC and is_drop(each))
    since_s = max((note.at_s, *drops))
    newest = takewhile(lambda model: model.made_s >= since_s, reversed(state.models.values()))
    refused = [
        model
        for model in newest
        if model.state in (ModelState.REJECTED, ModelState.ROLLED_BACK)
        and model.history[0][0] > since_s
        and _made_with(state, model, subject, note)
    ]
    matches = state.trusted_matches() if refused else []
    worse = list(takewhile(lambda model: _is_worse(model, matches), refused))
    return Trial(subject=subject, note=note, refused=len(refused), worse=len(worse))


def is_drop(note: Noted) -> bool:
    return bool(note.details.get("dropped"))


def _is_worse(model: Model, matches: Sequence[Match]) -> bool:
    return model.state is ModelState.ROLLED_BACK or promotion.lost_clearly(model.digest, matches)


def _made_with(state: ConfigState, model: Model, subject: str, note: Noted) -> bool:
    """Whether *model* was trained after *note* and by it: by its games, if they are what it changed."""
    if model.history[0][0] <= note.at_s:  # a note has the time of the fact before it
        return False
    if subject == SIZE:
        return model.preset == str(note.details.get("best_params", {}).get("preset"))
    if subject == TRAINING:
        return True
    samples = state.samples.get(model.samples)
    shards = () if samples is None else samples.shards
    return any(
        (shard := state.shards.get(digest)) is not None and shard.ordered_s > note.at_s for digest in shards
    )


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
        self._kv, self._runs = kv, KvRecords(kv, SEARCH_PREFIX, OptimizationRun)

    async def runs(self) -> list[OptimizationRun]:
        """All that are kept, oldest first."""
        return sorted(await self._runs.all(), key=lambda run: (run.started_s, run.run_id))

    async def get(self, run_id: str) -> OptimizationRun | None:
        return await self._runs.get(run_id)

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
            await self._runs.delete(run.run_id)
            raise Conflict("another search is under way") from None

    async def put(self, run: OptimizationRun) -> None:
        await self._runs.put(run.run_id, run)

    async def end(self, run: OptimizationRun) -> None:
        """Write how *run* ended, and let the next begin. Safe to repeat."""
        await self.put(run)
        entry = await self._kv.get(OPEN_SEARCH)
        if entry is not None and entry.value.decode() == run.run_id:
            await self._kv.delete(OPEN_SEARCH, revision=entry.revision)
        for old in (await self.runs())[:-RUNS_MAX]:
            if not old.status.is_open:
                await self._runs.delete(old.run_id)


# Ordering a search for better parameters: a record of it, and a work item that any worker may take.
#
# The process of the run and the command line order in the same way. Whoever orders, the coordinator of the
# run follows the search and writes what it showed into the facts.


class SearchChoices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller may choose of the job `tune`, within the limits of the job; the rest the order says."""

    subject: Literal["auto", "search", "heuristic"] = "auto"
    c_scale: Annotated[float, msgspec.Meta(ge=0)] = 0
    c_visit: Annotated[float, msgspec.Meta(ge=0)] = 0
    considered: Annotated[int, msgspec.Meta(ge=1)] = 1
    rescale: bool = True
    trials: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    population: Annotated[int, msgspec.Meta(ge=4, le=256)] = 4
    generations: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    games: Annotated[int, msgspec.Meta(ge=2)] = 2
    verify_games: Annotated[int, msgspec.Meta(ge=0)] = 0
    simulations: Annotated[int, msgspec.Meta(ge=2)] = 2
    rows: Annotated[int, msgspec.Meta(ge=0)] = 0
    preset: str = ""
    presets: tuple[str, ...] = ()
    spread: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1
    quick: bool = True
    hold_out: Annotated[float, msgspec.Meta(gt=0, le=0.5)] = 0.5
    lr: Annotated[float, msgspec.Meta(gt=0)] = 1
    batch: Annotated[int, msgspec.Meta(ge=1)] = 1
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 1
    log_level: str = ""


_SET_BY_THE_ORDER = frozenset({"config", "kind", "out", "samples", "model"})
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
    own_program: bool = False  # a program of the user's own searches, with the parameters that it likes

    def __post_init__(self) -> None:
        check_name("config_key", self.config)
        check_text("reason", self.reason, chars_max=ERROR_CHARS_MAX, empty=True)
        check_flag("automatic", self.automatic)
        if self.run_id is not None:
            check_name("run_id", self.run_id)
        if taken := _SET_BY_THE_ORDER & self.params.keys():
            raise ConfigError(f"{min(taken)} of a search follows from its config and cannot be chosen")
        if self.own_program:
            return
        try:
            # As the job does, which would refuse it much later, and hold up other searches until then.
            convert_to(self.params, SearchChoices, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"a search cannot be ordered so: {error}") from None


async def order_search(
    engine: Engine, runtime: Runtime, search: Search, state: ConfigState | None, rules: LearningRules
) -> OptimizationRun:
    """Raises `Conflict` that says why none may begin now."""
    store, now_s = TuningStore(engine.kv), runtime.now_s()
    if why := why_not(await store.runs(), now_s, automatic=search.automatic):
        raise Conflict(why)
    order = tune_order(search.kind, search.config, state, rules, **search.params)
    if order is None:
        raise Conflict(f"{search.config} has no {lacking(search)} yet")
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


def lacking(search: Search) -> str:
    """What a config without an order for *search* does not have."""
    if search.kind is not OptimizationType.CMAES:
        return "samples to train on"
    if search.params.get("subject") == HEURISTIC:
        return "heuristic"
    return "champion whose search could be tuned in games of RingRift's own program"


def _new_name(kind: OptimizationType, runtime: Runtime) -> str:
    """Short enough to be typed, and never one that was given before: an item of that name would be over."""
    digest = hashlib.sha256(runtime.new_id().encode()).hexdigest()
    return f"tune.{kind}.{digest[:NAME_DIGITS]}"
