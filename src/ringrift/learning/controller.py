"""The one reconcile loop: looks at what is, asks the plan, and does what it says.

Every change is a fact first. An order is a fact before it is a work item, and an end is a fact before its
consequences, so a crash between any two steps is made good by the next pass. Events only wake the loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from ringrift.engine.ports import Engine, NewWork, WorkItem, WorkState
from ringrift.engine.records import read_record, write_record
from ringrift.engine.work_rules import HOLDS, WORK_LEASES
from ringrift.errors import ConfigError
from ringrift.learning.announcements import Announcer
from ringrift.learning.facts.facts import (
    SLOTS_TOPIC,
    AnyFact,
    Blocked,
    JobEnded,
    JobIssued,
    Noted,
    WorkerSetAside,
)
from ringrift.learning.facts.high_water import ConfigMark
from ringrift.learning.facts.ledger import Ledger, fits, known_configs, quoted, remember_config
from ringrift.learning.facts.records import SetAside
from ringrift.learning.facts.results import problem_with
from ringrift.learning.facts.state import STUDENTS, Block, ConfigState, OpenJob, has_recalled
from ringrift.learning.judging.feedback import RatingCurves, config_view
from ringrift.learning.judging.ratings import rate
from ringrift.learning.models import ChampionPointers
from ringrift.learning.plan.evaluation import is_new_request
from ringrift.learning.plan.orders import (
    ConfigPlan,
    Snapshot,
    decided_by_cascade,
    outlook,
    source_name,
    source_of,
)
from ringrift.learning.plan.plan import SELFPLAY, Capacity, Choice, Effort, choose, plan, plan_next_games
from ringrift.learning.plan.rules import LearningRules, rules_note
from ringrift.learning.plan.stages import (
    CASCADE_TRAINING,
    LEVERS,
    SlotHold,
    StageMembers,
    health_note,
    is_stopped,
    slot_note,
    stages_note,
)
from ringrift.learning.plan.trust import (
    BY_PLAN,
    DIAGNOSE,
    RECOMPUTE,
    keep_reported,
    shards_behind,
    worker_for,
)
from ringrift.learning.requests import (
    ALL,
    GAMES_PREFIX,
    JOBS,
    RECALL_PREFIX,
    WORKER_PREFIX,
    GameRequests,
    ReadPauses,
    RecallRequests,
    StandingRequests,
    TrainingJob,
    WaitingRequests,
    asked_about,
    changes_standing,
    end_gone_trainings,
    failed_training,
    held_slots,
    is_new,
    tell_set_aside,
)
from ringrift.runtime import Runtime
from ringrift.work.admission import SpawnGate
from ringrift.work.job.protocol import read_report
from ringrift.work.shares import PREPARING, config_shares, slots_for
from ringrift.work.worker.records import WORKERS, WorkerRecord, live_workers, own_capability, workers_in

# From an item of the queue that ended to the fact that says how.


ERROR_CHARS_MAX = 4_000


def ended_fact(state: ConfigState, job: OpenJob, item: WorkItem, *, at_s: float) -> JobEnded:
    """How *job* ended. A result that cannot be its answer is a failure, and says why."""
    if item.state is WorkState.CANCELLED:
        return without_report(job, item.error or "cancelled", at_s=at_s, cancelled=True)
    if item.state is WorkState.DEAD:
        return without_report(job, item.error or "no reason was given", at_s=at_s)
    if item.result is None and item.error:  # the queue has lost the answer
        return without_report(job, item.error, at_s=at_s)
    try:
        report = read_report(item.result or {})
    except ConfigError as error:
        return without_report(job, str(error), at_s=at_s)
    if problem := problem_with(state, job, report):
        return without_report(job, problem, at_s=at_s)
    fact = JobEnded(at_s=at_s, job_id=job.job_id, report=report)
    if not fits(fact):
        return without_report(job, "the report is too long to be kept", at_s=at_s)
    return fact


def without_report(job: OpenJob, error: str, *, at_s: float, cancelled: bool = False) -> JobEnded:
    """*job* failed or was cancelled, and brought nothing."""
    return JobEnded(at_s=at_s, job_id=job.job_id, cancelled=cancelled, error=error[:ERROR_CHARS_MAX])


# Fits ratings beside the event loop, as soon as there is something new to fit.
#
# `rate` is asked for in the middle of decisions, which cannot wait. Thousands of matches take it tenths of a
# second, so they are fitted in a thread when they come in; whoever asks afterwards finds the answer there.


class RatingRefits:
    """Follows the matches of several configs."""

    def __init__(self) -> None:
        self._fitted: dict[str, tuple[int, ...]] = {}

    async def follow(self, state: ConfigState) -> None:
        """Returns when the ratings of *state* are fitted; at once if there is nothing new."""
        withdrawn = sum(recall.withdrawn for recall in state.recalls.values())
        mark = (len(state.matches), len(state.recalls), withdrawn)
        if mark != self._fitted.get(state.config):
            await asyncio.to_thread(rate, state.trusted_matches())
            self._fitted[state.config] = mark


# The controller itself.


ENDS_AT_ONCE = 500
DECISIONS_AT_ONCE = 16
ORDERS_AT_ONCE = 256
HELD_S_MIN, HELD_S_MAX = 1.0, 60.0
HELD_WRITTEN_S = 600.0
SLOTS_NOTED_S = 30.0
PLAN_AGAIN_S = 2.0
RECOMPUTE_WAIT_S = 600.0  # for the worker that it is meant for; then another is asked
SEEN_END_KEY = "learning/seen_end"
LEFT_REASON = "its config is no longer in the run"

log = structlog.get_logger()


class Controller:
    """Runs the loop of all configs of one engine. One process at a time may do that."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        rules: LearningRules,
        *,
        announcer: Announcer,
        safeguards: SpawnGate | None = None,
        keep_mark: Callable[[Mapping[str, ConfigMark]], Awaitable[None]] | None = None,
        stages: StageMembers | None = None,
    ) -> None:
        """Without *stages* everything is planned, as if all daemons ran and were well."""
        self._engine, self._runtime, self.rules = engine, runtime, rules
        self._announcer, self._safeguards = announcer, safeguards
        self._keep_mark = keep_mark  # makes it durable how far the configs are
        self._stages = stages
        self._held: dict[str, Block] = {}  # kind: why the machine may not take more of it, and until when
        self._pauses_read = ReadPauses()
        self._champions = ChampionPointers(engine.kv)
        self._recalls, self._games = RecallRequests(engine.kv), GameRequests(engine.kv)
        self._requests = StandingRequests(engine.kv)
        self._known_aside: dict[str, SetAside] | None = None  # None: what the last run told is not known
        self._ledgers: dict[str, Ledger] = {}
        self._jobs: dict[str, str] = {}  # open job: config
        self._unqueued: deque[OpenJob] = deque()  # facts, and not yet in the queue
        self._seen_end = self._kept_end = 0  # of the queue's numbers: taken in, and stored as taken in
        self._effort = Effort()
        self._refits = RatingRefits()
        self.curves = RatingCurves()
        self.plans: dict[str, ConfigPlan] = {}
        self.passes = 0

    def configs(self) -> list[str]:
        return list(self._ledgers)

    def state(self, config: str) -> ConfigState:
        """What is known of *config*; raises `ConfigError` that lists those there are."""
        if config not in self._ledgers:
            raise ConfigError(f"{config} is not among the configs of this run: {', '.join(self._ledgers)}")
        return self._ledgers[config].state

    def marks(self) -> dict[str, ConfigMark]:
        """How far each config is."""
        return {
            config: ConfigMark(facts=ledger.state.facts, last_hash=ledger.last_hash, games=ledger.state.games)
            for config, ledger in self._ledgers.items()
        }

    def held(self, config: str) -> dict[str, Block]:
        """What *config* wants and the machine may not take now, by kind."""
        wanted = {each.kind for each in self.plans[config].wanted} if config in self.plans else set()
        now_s = self._runtime.now_s()
        return {kind: block for kind, block in self._held.items() if kind in wanted and block.holds(now_s)}

    def shares(self) -> dict[str, float]:
        """The share of self-play of each config."""
        return config_shares([config_view(ledger.state, self.curves) for ledger in self._ledgers.values()])

    # --- start ---------------------------------------------------------------------------------------------

    async def open(self, configs: Sequence[str]) -> None:
        """Read the facts of *configs*, and make good what a crash left half-done."""
        self._seen_end = self._kept_end = await self._read_seen_end()
        await self._end_work_of_others(configs)
        for config in configs:
            await remember_config(self._engine.kv, config)
            ledger = await Ledger.open(self._engine.kv, config, bucket_rules=self.rules.bucket)
            self._ledgers[config] = ledger
            await self._refits.follow(ledger.state)
            noted = rules_note(ledger.state, self.rules, at_s=self._runtime.now_s())
            if noted is not None:
                await self._write(config, noted)
        await self._settle()  # the last process may have died before it did
        shares = self.shares()
        for config, ledger in self._ledgers.items():
            for job in list(ledger.state.open_jobs.values()):
                self._jobs[job.job_id] = config
                await self._put_into_queue(job)
                self._effort.start(config, job, share=shares[config])
            await self._champions.follow(ledger.state)
        # Ends may be older than the number that was kept: those of a config that was out of the run.
        for job_id, config in list(self._jobs.items()):
            item = await self._engine.queue.get(job_id)
            if item is not None:
                await self._note_end(config, item, share=shares[config])
        await self._settle()

    async def _end_work_of_others(self, configs: Sequence[str]) -> None:
        """Cancel what was ordered for configs that are no longer in the run: nobody would take it in."""
        kv, queue = self._engine.kv, self._engine.queue
        for config in await known_configs(kv):
            if config in configs:
                continue
            ledger = await Ledger.open(kv, config, bucket_rules=self.rules.bucket)
            for job in list(ledger.state.open_jobs.values()):
                await queue.cancel(job.job_id, reason=LEFT_REASON)
                item, at_s = await queue.get(job.job_id), self._runtime.now_s()
                if item is None:
                    fact = without_report(job, LEFT_REASON, at_s=at_s, cancelled=True)
                else:
                    fact = ended_fact(ledger.state, job, item, at_s=at_s)
                await ledger.append(fact)
                self._announcer.note(fact, ledger.state)

    async def _read_seen_end(self) -> int:
        return await read_record(self._engine.kv, SEEN_END_KEY, int) or 0

    async def remember_seen_end(self) -> None:
        """Keep how far the ends of work were taken in, so that the next start goes on from there."""
        seen = self._seen_end
        if seen != self._kept_end:
            await write_record(self._engine.kv, SEEN_END_KEY, seen)
            self._kept_end = seen

    # --- one pass ------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Take in what ended, decide, order. Safe to repeat, and to break off at any point."""
        self.passes += 1
        await self._note_ends()
        # In one read: passes are many, and what is read with each of them is little.
        asked = (HOLDS, WORK_LEASES, WORKERS, RECALL_PREFIX, GAMES_PREFIX, WORKER_PREFIX, JOBS)
        around = await self._engine.kv.entries(*asked)
        self._pauses_read, workers = ReadPauses(around), workers_in(around)
        recalls, requests = asked_about(RECALL_PREFIX, around), asked_about(WORKER_PREFIX, around)
        games = asked_about(GAMES_PREFIX, around)
        await self._note_stages()
        await self._note_health()
        await self._note_training_slots(await held_slots(self._engine.kv, around))
        under_slots = [entry for entry in around if entry.key.startswith(JOBS)]
        await end_gone_trainings(self._engine.kv, self._runtime, under_slots, self._tell_gone)
        for config in self._ledgers:
            if quoted(config) in recalls:
                await self._take_in_requests(config, self._recalls, is_new)
            await self._end_jobs_of_recalled(config)
            if quoted(config) in requests:
                await self._take_in_requests(config, self._requests, changes_standing)
            if quoted(config) in games:
                await self._take_in_requests(config, self._games, is_new_request)
            await self._decide(config)
        await self._follow_standing()
        await self._order(workers)

    async def _tell_gone(self, job: TrainingJob) -> None:
        self._announcer.tell("TRAINING_FAILED", failed_training(job))
        await self._settle()

    async def _note_stages(self) -> None:
        """Write down which daemons plan, before anything is planned without or with them."""
        stopped = None if self._stages is None else self._stages.stopped(LEVERS)
        if stopped is None:
            return
        for config, ledger in self._ledgers.items():
            note = stages_note(ledger.state, stopped, at_s=self._runtime.now_s())
            if note is not None:
                await self._write(config, note)

    async def _note_health(self) -> None:
        """Write down what holds the pipeline now, before anything is planned."""
        holds = {} if self._stages is None else self._stages.holds()
        for config, ledger in self._ledgers.items():
            hold = holds.get(ALL) or holds.get(config)
            note = health_note(ledger.state, hold, at_s=self._runtime.now_s())
            if note is not None:
                await self._write(config, note)

    async def _note_training_slots(self, held: Mapping[str, SlotHold]) -> None:
        """Write down who trains a config himself. The queue keeps workers from it, whenever he began."""
        for config, ledger in self._ledgers.items():
            note = slot_note(ledger.state, held.get(config), at_s=self._runtime.now_s())
            if note is not None:
                await self._write(config, note)

    async def take_in_ends(self) -> int:
        """Write down which of our jobs ended; return how many."""
        noted = await self._note_ends()
        await self._settle()
        return noted

    async def _note_ends(self) -> int:
        """Whoever acts on what is noted settles before: in a pass, with the orders that it leads to."""
        noted, more = 0, True
        while more:
            ends = await self._engine.queue.ended(after=self._seen_end, limit=ENDS_AT_ONCE)
            more = len(ends) == ENDS_AT_ONCE
            shares = self.shares() if ends else {}  # once for all: they are made from all results
            for end in ends:
                config = self._jobs.get(end.item.id)
                if config is not None:
                    await self._note_end(config, end.item, share=shares[config])
                    noted += 1
                self._seen_end = end.number
        return noted

    async def wait_for_end(self, wait_s: float) -> None:
        """Return when work ends that is not taken in yet, or after *wait_s*."""
        await self._engine.queue.ended(after=self._seen_end, limit=1, wait_s=wait_s)

    async def _note_end(self, config: str, item: WorkItem, *, share: float) -> None:
        if item.state not in (WorkState.DONE, WorkState.DEAD, WorkState.CANCELLED):
            return
        ledger = self._ledgers[config]
        job = ledger.state.open_jobs.get(item.id)
        if job is None:
            return
        fact = ended_fact(ledger.state, job, item, at_s=self._runtime.now_s())
        if fact.report is not None and fact.report.worker in self.set_aside():
            why = f"its worker {fact.report.worker} is set aside"
            fact = without_report(job, why, at_s=fact.at_s, cancelled=True)
        if job.kind == DIAGNOSE and fact.report is not None:
            # Kept before the fact: after a crash between the two it is only kept again.
            problem = await keep_reported(self._engine.kv, ledger.state, fact.report)
            fact = without_report(job, problem, at_s=fact.at_s) if problem else fact
        await self._write(config, fact)
        del self._jobs[job.job_id]
        cpu_s = None if fact.report is None else fact.report.cpu_s
        self._effort.end(config, job, cpu_s, share=share)

    async def _end_jobs_of_recalled(self, config: str) -> None:
        """End jobs that would learn from recalled games."""
        state = self._ledgers[config].state
        for job in state.open_of("export", "train", *STUDENTS) if state.trust_before_recall else ():
            if has_recalled(state, shards_behind(state, job.order)):
                await self._engine.queue.cancel(job.job_id, reason="its games were recalled")

    async def _take_in_requests(
        self, config: str, requests: WaitingRequests[Any], is_new: Callable[[ConfigState, Any, float], bool]
    ) -> None:
        """Make facts of what people asked for, as far as that would change anything."""
        for request in await requests.waiting(config):
            now_s = self._runtime.now_s()
            if is_new(self._ledgers[config].state, request, now_s):
                await self._write(config, msgspec.structs.replace(request, at_s=now_s))
                await self._settle()
            await requests.remove(config, request)

    def set_aside(self) -> dict[str, SetAside]:
        """The workers that get no work now, whichever config found out about them."""
        now_s = self._runtime.now_s()
        return {
            standing.name: standing.set_aside
            for ledger in self._ledgers.values()
            for standing in ledger.state.workers.values()
            if standing.set_aside is not None and standing.set_aside.holds(now_s)
        }

    async def _follow_standing(self) -> None:
        """Tell workers that are set aside, and let every config recall its own games of them."""
        aside, now_s = self.set_aside(), self._runtime.now_s()
        for config, ledger in self._ledgers.items():
            for name, why in aside.items():
                known = ledger.state.workers.get(name)
                if known is not None and not known.is_set_aside(now_s) and why.by == BY_PLAN:
                    await self._write(config, _elsewhere(name, why, at_s=now_s))
        if aside != self._known_aside:
            await self._settle()
            await tell_set_aside(self._engine.kv, aside)
            self._known_aside = aside
        for job_id, config in list(self._jobs.items()):
            if self._ledgers[config].state.open_jobs[job_id].kind == RECOMPUTE:
                await self._ask_another(job_id, now_s)

    async def _ask_another(self, job_id: str, now_s: float) -> None:
        """Give up on a worker that does not take what was meant for it; the plan orders it again."""
        item = await self._engine.queue.get(job_id)
        if item is None or item.state is not WorkState.READY:
            return
        if now_s - item.changed_s > RECOMPUTE_WAIT_S:
            await self._engine.queue.cancel(job_id, reason="nobody took it; another is asked")

    async def _decide(self, config: str) -> None:
        """Write what is decided until nothing more follows from it."""
        ledger = self._ledgers[config]
        for fact in self._cascaded(ledger.state):
            await self._write(config, fact)
        for _ in range(DECISIONS_AT_ONCE):
            made = plan(self._snapshot(ledger.state))
            self.plans[config] = made
            if not made.decided:
                return
            for fact in made.decided:
                await self._write(config, fact)
            await self._settle()
            await self._champions.follow(ledger.state)
        log.error("learning.decisions_do_not_settle", config=config)

    def _cascaded(self, state: ConfigState) -> list[AnyFact]:
        """What follows from the config that *state* follows, if that is in the run."""
        name, rules = source_name(state.config, self.rules.cascade), self.rules.cascade
        if name is None or name == state.config or name not in self._ledgers or state.models:
            return []
        if is_stopped(state, CASCADE_TRAINING):
            return []
        source = self._ledgers[name].state
        found = source_of(source, self.curves.of(source))
        return decided_by_cascade(state, found, rules, self._runtime.now_s())

    async def _order(self, workers: Sequence[WorkerRecord]) -> None:
        await self._choose_orders(workers)
        await self._hand_out()

    async def _hand_out(self) -> None:
        """Put what was ordered into the queue, once the mark covers the orders and what led to them."""
        await self._settle()
        while self._unqueued:
            await self._put_into_queue(self._unqueued[0])
            self._unqueued.popleft()

    async def _choose_orders(self, workers: Sequence[WorkerRecord]) -> None:
        slots = slots_for(workers, SELFPLAY)
        now_s = self._runtime.now_s()
        self._held = {kind: block for kind, block in self._held.items() if block.holds(now_s)}
        await self._note_slots(slots, gpus=sum(worker.gpus for worker in workers))
        shares, throttle = self.shares(), await self._throttle()
        for _ in range(ORDERS_AT_ONCE):
            capacity = self._capacity(slots, throttle)
            choice = self._choose(capacity, shares)
            if choice is None:
                self._explain_held(capacity)
                return
            if not await self._is_allowed(choice.wanted.kind):
                continue
            await self._issue(choice, share=shares[choice.config])
            snapshot = self._snapshot(self._ledgers[choice.config].state)
            if choice.wanted.kind == SELFPLAY:
                plan_next_games(snapshot, self.plans[choice.config])
            else:
                self.plans[choice.config] = plan(snapshot)
        log.warning("learning.orders_at_once", orders=ORDERS_AT_ONCE, slots=slots)

    async def _note_slots(self, slots: int, *, gpus: int) -> None:
        """Write down how much the workers take, for the plans that depend on it; now and then at most."""
        now_s, configs = self._runtime.now_s(), len(self._ledgers)
        for config, ledger in self._ledgers.items():
            before = ledger.state.newest_note(SLOTS_TOPIC)
            details = {"slots": slots, "configs": configs, **({"gpus": gpus} if gpus else {})}
            recent = before is not None and 0 <= now_s - before.at_s < SLOTS_NOTED_S
            if not slots or recent or (before is not None and before.details == details):
                continue
            on_gpus = f" with {gpus} GPU{'s' * (gpus > 1)}" if gpus else ""
            text = f"{slots} jobs at a time{on_gpus} for {configs} config{'s' * (configs > 1)}"
            await self._write(config, Noted(at_s=now_s, topic=SLOTS_TOPIC, text=text, details=details))
            self.plans[config] = plan(self._snapshot(ledger.state))

    async def _throttle(self) -> float:
        """The part of full speed that is left to games."""
        if self._safeguards is None or not self.rules.follow_backpressure:
            return 1.0
        return await self._safeguards.throttle(SELFPLAY)

    def _capacity(self, slots: int, throttle: float) -> Capacity:
        open_jobs = [job for ledger in self._ledgers.values() for job in ledger.state.open_jobs.values()]
        games = sum(1 for job in open_jobs if job.kind == SELFPLAY)
        others = sum(1 for job in open_jobs if job.kind not in (SELFPLAY, *PREPARING))
        return Capacity(slots, games, others, throttle)

    def _choose(self, capacity: Capacity, shares: dict[str, float]) -> Choice | None:
        return choose(
            self.plans,
            capacity,
            config_served=self._effort.turns.served(shares),
            config_shares=shares,
            held=self._held,
        )

    async def _is_allowed(self, kind: str) -> bool:
        """Ask the safeguards; a kind that they refuse is held until it is worth asking again."""
        if self._safeguards is None:
            return True
        verdict = await self._safeguards.may_order(kind, self._runtime.hostname)
        if verdict.ok:
            return True
        now_s = self._runtime.now_s()
        # What ends sooner than it said, such as an emergency that somebody clears, is seen within a minute.
        wait_s = min(max(verdict.retry_after_s, HELD_S_MIN), HELD_S_MAX)
        block = Block(verdict.reason, now_s + wait_s, now_s)
        self._held[kind] = block
        await self._write_held(kind, block)
        return False

    async def _write_held(self, kind: str, block: Block) -> None:
        """Write that work of *kind* waits for the machine: once in a while, however often it is refused."""
        for config, made in self.plans.items():
            before = self.state(config).blocks.get(kind)
            recent = before is not None and 0 <= block.since_s - before.since_s < HELD_WRITTEN_S
            if not recent and any(wanted.kind == kind for wanted in made.wanted):
                fact = Blocked(at_s=block.since_s, stage=kind, reason=block.reason, until_s=block.until_s)
                await self._write(config, fact)

    def _explain_held(self, capacity: Capacity) -> None:
        """Say of work that is wanted why it is not ordered, where that is not just that all are busy."""
        held = dict(self._held)
        if capacity.throttle < 1.0 and SELFPLAY not in held:
            now_s = self._runtime.now_s()
            held[SELFPLAY] = Block(capacity.supply().reason, now_s + PLAN_AGAIN_S, now_s)
        for made in self.plans.values():
            for kind, block in held.items():
                if any(wanted.kind == kind for wanted in made.wanted):
                    made.explanations = [each for each in made.explanations if each.stage != kind]
                    made.say(kind, block.reason, until_s=block.until_s)

    async def _issue(self, choice: Choice, *, share: float) -> None:
        wanted, state = choice.wanted, self.state(choice.config)
        number = state.issued[wanted.kind] + 1
        fact = JobIssued(
            at_s=self._runtime.now_s(),
            job_id=job_id(choice.config, wanted.kind, number),
            kind=wanted.kind,
            order=wanted.order,
            priority=wanted.priority,
            reason=wanted.reason,
        )
        await self._write(choice.config, fact)
        self._jobs[fact.job_id] = choice.config
        self._unqueued.append(state.open_jobs[fact.job_id])
        self._effort.start(choice.config, state.open_jobs[fact.job_id], share=share)

    async def _put_into_queue(self, job: OpenJob) -> None:
        """Once per job, however often it is called."""
        requires = {"gpu"} if job.order.gpu else set()
        if job.order.not_by:
            workers = await live_workers(self._engine.kv)
            if (name := worker_for(job.job_id, job.order.not_by, workers)) is not None:
                requires.add(own_capability(name))
        item = NewWork(
            id=job.job_id,
            kind=job.kind,
            payload=job.order.as_payload(),
            priority=job.priority,
            requires=frozenset(requires),
            group=job.order.config,
            idempotency_key=job.job_id,
            attempts_max=self.rules.job_attempts,
        )
        await self._engine.queue.add([item])

    # --- around it -----------------------------------------------------------------------------------------

    async def write(self, config: str, fact: AnyFact) -> None:
        """Add a fact that somebody else found: a recall, a note. The next pass acts on it."""
        self.state(config)
        await self._write(config, fact)
        await self._settle()

    async def take_in_done(self, config: str, issued: JobIssued) -> None:
        """Write down work that somebody did unasked, and what came of it: its item of the queue is done.

        After a crash between the two facts the next start finds the job open and its item done.
        """
        ledger = self._ledgers[config]
        await self._write(config, issued)
        job, item = ledger.state.open_jobs[issued.job_id], await self._engine.queue.get(issued.job_id)
        assert item is not None
        await self._write(config, ended_fact(ledger.state, job, item, at_s=self._runtime.now_s()))
        await self._settle()

    async def _write(self, config: str, fact: AnyFact) -> None:
        ledger = self._ledgers[config]
        await ledger.append(fact)
        await self._refits.follow(ledger.state)
        self._announcer.note(fact, ledger.state)

    async def _settle(self) -> None:
        """Have the mark cover all facts, then announce them: nothing is done because of one before."""
        if self._keep_mark is not None:
            await self._keep_mark(self.marks())
        await self._announcer.publish()

    def _snapshot(self, state: ConfigState) -> Snapshot:
        paused = self._pauses_read.why_paused(state.config)
        return outlook(state, self.rules, self.curves, now_s=self._runtime.now_s(), paused=paused)


def _elsewhere(worker: str, why: SetAside, *, at_s: float) -> WorkerSetAside:
    """What one config found out about a worker, for the facts of another."""
    return WorkerSetAside(
        at_s=at_s, worker=worker, reason=why.reason, until_s=why.until_s, by="another config"
    )


def job_id(config: str, kind: str, number: int) -> str:
    """A name that is also good for a folder, and of one config only."""
    plain = "".join(c if c.isalnum() or c in "_-" else "-" for c in config)
    if plain != config:
        plain = f"{plain}-{hashlib.sha256(config.encode()).hexdigest()[:8]}"
    return f"{plain}.{kind}.{number:06d}"
