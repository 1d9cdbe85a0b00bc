"""What is asked of a run from outside: pauses, recalls, what becomes of workers, and slots to train in.

Any process may write a request. The loop looks at the pauses each time it plans; the others are taken in by
the one process that writes facts. Taking one in twice changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec
import structlog

from ringrift.engine.arguments import check_integer
from ringrift.engine.encoding import decode_entry
from ringrift.engine.leases import LeaseConfig, NamedLease, lease_holder, lease_key
from ringrift.engine.opening import get_engine, has_store
from ringrift.engine.ports import Engine, Entry, KeyValue, WorkItem, WorkQueue
from ringrift.engine.records import KvRecords, delete_at, read_record, read_records, write_record
from ringrift.engine.work_rules import (
    ALL_WORK,
    EMERGENCY_WORK,
    HOLDS,
    TASKS_WORK,
    WORK_LEASES,
    HeldWork,
    held_groups,
    hold_key,
    work_lease,
)
from ringrift.errors import ConfigError, Conflict, Corrupt, LeaseLost, RevisionMismatch, Unavailable
from ringrift.learning.facts.facts import Noted, Recalled, WorkerResumed, WorkerSetAside
from ringrift.learning.facts.ledger import quoted
from ringrift.learning.facts.records import SetAside
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.stages import SlotHold
from ringrift.runtime import Runtime, system_runtime
from ringrift.task_owner import TaskOwner
from ringrift.work.job.protocol import number
from ringrift.work.limits import Pause
from ringrift.work.worker.records import (
    SET_ASIDE,
    RunningRecord,
    SetAsideRecord,
    running_jobs,
    set_aside_key,
)

log = structlog.get_logger()

# Pauses: what people stopped on purpose, one config or the whole run, until they let it go on.
#
# A pause is a hold of the work queue, so that no worker of any process claims what it holds.


ALL = ALL_WORK


class Pauses:
    """The pauses of single configs, and of all (`*`)."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def set(self, config: str, pause: Pause) -> None:
        """From the moment this returns nothing of *config* is claimed."""
        await write_record(self._kv, hold_key(config), pause)

    async def get(self, config: str) -> Pause | None:
        return await read_record(self._kv, hold_key(config), Pause)

    async def end(self, configs: Iterable[str]) -> list[str]:
        """Let *configs* go on; return those that were paused."""
        return [config for config in configs if await self._kv.delete(hold_key(config))]

    async def end_all(self) -> list[str]:
        """Let everything go on, also what is no longer in the run; return what was paused."""
        held = held_groups(entry.key for entry in await self._kv.entries(HOLDS))
        return await self.end(sorted(held - {EMERGENCY_WORK}))

    async def read(self) -> ReadPauses:
        """All pauses as they are now."""
        return ReadPauses(await self._kv.entries(HOLDS))


class ReadPauses:
    """The pauses as they were at one moment."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {entry.key: entry for entry in entries}

    def of(self, config: str) -> Pause | None:
        """The pause that holds *config*: an emergency stop, and that of the whole run, before its own."""
        for place in (EMERGENCY_WORK, ALL, TASKS_WORK, config):
            if (entry := self._entries.get(hold_key(place))) is not None:
                return decode_entry(entry, Pause)
        return None

    def why_paused(self, config: str) -> str | None:
        """The reason, or None if the config may work."""
        pause = self.of(config)
        return None if pause is None else pause.why


# A recall waits under `learning/recall_wish/<config>/<id>` until the control process, or a command that found
# none running, has made it a fact; games that were asked for wait under `learning/game_request/<config>/`.


RECALL_PREFIX = "learning/recall_wish/"
GAMES_PREFIX = "learning/game_request/"
NAME_DIGITS = 16


def asked_about(prefix: str, entries: Iterable[Entry]) -> set[str]:
    """The configs for which a request under *prefix* waits, as they stand in keys."""
    keys = (entry.key for entry in entries if entry.key.startswith(prefix))
    return {key.removeprefix(prefix).partition("/")[0] for key in keys}


class Dated(Protocol):
    """What says when it was asked for."""

    @property
    def at_s(self) -> float: ...


R = TypeVar("R", bound=Dated)


class WaitingRequests(Generic[R]):
    """Requests of one kind, by config and name, that are not facts yet."""

    def __init__(self, records: KvRecords[R], name_of: Callable[[R], str]) -> None:
        self._records, self._name_of = records, name_of

    async def add(self, config: str, request: R) -> None:
        """Ask for *request*; the newest of a name counts."""
        await self._records.put(_place(config, self._name_of(request)), request)

    async def waiting(self, config: str) -> list[R]:
        """The requests for *config*, oldest first."""
        return sorted(await self._records.all(f"{quoted(config)}/"), key=lambda request: request.at_s)

    async def is_waiting(self, config: str, name: str) -> bool:
        return await self._records.has(_place(config, name))

    async def remove(self, config: str, request: R) -> None:
        """The request is a fact; one that was replaced since stays."""
        await self._records.delete_if(_place(config, self._name_of(request)), request)


def _place(config: str, name: str) -> str:
    return f"{quoted(config)}/{quoted(name)}"


class GameRequests(WaitingRequests[Noted]):
    """The games that another process asked for, as the notes that become of them."""

    def __init__(self, kv: KeyValue) -> None:
        super().__init__(KvRecords(kv, GAMES_PREFIX, Noted), _name_of)


def _name_of(note: Noted) -> str:
    return hashlib.sha256(msgspec.json.encode(note.details)).hexdigest()[:NAME_DIGITS]


class RecallRequests(WaitingRequests[Recalled]):
    """The recalls, and withdrawals of recalls, by their ids."""

    def __init__(self, kv: KeyValue) -> None:
        super().__init__(KvRecords(kv, RECALL_PREFIX, Recalled), lambda recall: recall.recall_id)


def is_new(state: ConfigState, recall: Recalled, _now_s: float = 0.0) -> bool:
    """Whether *recall* would change what the facts say."""
    known = state.recalls.get(recall.recall_id)
    if known is None:
        return not recall.withdrawn
    return msgspec.structs.replace(known, at_s=recall.at_s) != recall


# Workers that are set aside, told to them; and what people ask for about workers.
#
# `set_aside/<worker>` is kept by the control process for as long as the worker is to claim nothing. A request
# waits under `learning/worker_request/<config>/<worker>` until the one process that writes facts, or a
# command that found none running, has made it a fact.


WORKER_PREFIX = "learning/worker_request/"

Request = WorkerSetAside | WorkerResumed


def _request_records(kv: KeyValue) -> KvRecords[Request]:
    kind = cast("type[Request]", Request)
    return KvRecords(kv, WORKER_PREFIX, kind, advice="Delete the key", what="no request")


class StandingRequests(WaitingRequests[Request]):
    """The requests about workers, by the worker."""

    def __init__(self, kv: KeyValue) -> None:
        super().__init__(_request_records(kv), lambda request: request.worker)


def changes_standing(state: ConfigState, request: Request, now_s: float) -> bool:
    """Whether *request* would change what the facts say."""
    standing = state.workers.get(request.worker)
    is_aside = standing is not None and standing.is_set_aside(now_s)
    return is_aside == isinstance(request, WorkerResumed)


async def tell_set_aside(kv: KeyValue, aside: dict[str, SetAside]) -> None:
    """Make the records that workers look at be *aside*, no more and no less."""
    known = {entry.key: entry.value for entry in await kv.entries(SET_ASIDE)}
    wanted = {
        set_aside_key(name): msgspec.json.encode(
            SetAsideRecord(worker=name, reason=why.reason, since_s=why.since_s, until_s=why.until_s)
        )
        for name, why in aside.items()
    }
    for key, value in wanted.items():
        if known.get(key) != value:
            await kv.put(key, value)
    for key in known.keys() - wanted.keys():
        await kv.delete(key)


# Who may train now: one training per config, and a few in all, whether workers or others do it.
#
# A slot is two leases in the engine: one for the config and one of the numbered places. Their holder renews
# them; when it dies, both are free after the lease, and the loop, or who takes the slot next, tells that its
# training ended. The config's is the lease under which the queue hands out no training of it, and nobody gets
# it while a worker has one: the loop and a trainer of one's own never train the same config at once. Its
# token goes with every write that the training makes, so a trainer that lost its slot cannot spoil what the
# next one does.


SLOTS_MAX = 8
JOBS = "training/job/"
PLACES = "training/slot/"
ENDED = "training/ended/"
ENDED_MAX = 200  # the oldest go first
ENDED_KEPT_S = 30 * 86_400.0
SAID_CHARS_MAX = 2_000
RELEASE_S = 5.0
TRAIN = "train"  # the kind of the loop's trainings in the queue
CLAIMED_MAX = 10_000  # items that are looked through for trainings; there are no more workers
WORKER_POLL_S = 1.0
LEASE = LeaseConfig(lease_s=90.0, renew_s=10.0)


class Refusal(StrEnum):
    """Why there is no slot."""

    ALREADY_RUNNING = "already_running"
    MAX_CONCURRENT_REACHED = "max_concurrent_reached"
    LOCK_FAILED = "lock_failed"  # the engine did not answer


@dataclass(frozen=True, slots=True)
class Refused:
    """No slot, for a reason."""

    reason: Refusal
    message: str


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A training that has a slot, or had one, as everybody sees it."""

    job_id: str
    config_key: str
    holder: str
    node: str
    pid: int
    started_s: float
    token: int
    model_version: str = ""
    epochs: int = 0
    best_val_loss: float | None = None
    current_elo: float | None = None
    ended_s: float | None = None  # None: it runs
    error: str = ""  # of one that ended: empty if it ended well
    model_path: str = ""  # what its holder said it brought


@dataclass(slots=True)
class _Held:
    job: TrainingJob
    leases: tuple[NamedLease, ...]
    renewals: TaskOwner  # renew the leases


class TrainingSlots:
    """The slots that this process holds. Lives on one event loop, which renews them."""

    def __init__(
        self,
        open_engine: Callable[[], Awaitable[Engine]] | None = None,
        *,
        runtime: Runtime | None = None,
        slots_max: int = SLOTS_MAX,
        config: LeaseConfig = LEASE,
    ) -> None:
        if slots_max < 1:
            raise ConfigError("at least one training must be possible")
        runtime = runtime or system_runtime()
        self._open_engine, self._runtime = open_engine or get_engine, runtime
        self._slots_max, self._config = slots_max, config
        self._holder = f"{runtime.hostname}:{runtime.pid}:{runtime.new_id()}"
        self._held: dict[str, _Held] = {}
        self.on_gone: Callable[[TrainingJob], Awaitable[None]] | None = None  # tells of a holder that is gone

    async def request(
        self, config_key: str, *, model_version: str = "", wait_s: float = 0.0
    ) -> TrainingJob | Refused:
        """Take a slot for *config_key*, waiting up to *wait_s* for its config to be free.

        Whoever waits while a worker trains it is next: no worker begins another training of it meanwhile.
        """
        try:
            async with AsyncExitStack() as taken:  # gives back what was taken for a training that has no slot
                answer = await self._request(config_key, taken, model_version=model_version, wait_s=wait_s)
        except Unavailable as error:
            return Refused(Refusal.LOCK_FAILED, str(error))
        return answer

    async def _request(
        self, config_key: str, taken: AsyncExitStack, *, model_version: str, wait_s: float
    ) -> TrainingJob | Refused:
        engine = await self._open_engine()
        kv, until_s = engine.kv, self._runtime.monotonic_s() + wait_s
        own = self._lease(kv, config_lease(config_key))
        taken.push_async_callback(own.release_in_time)
        try:
            token = await own.acquire(wait_s=wait_s)
            item = await self._wait_for_worker(engine.queue, own, config_key, until_s=until_s)
        except Conflict:
            hold = (await held_slots(kv)).get(config_key)
            why = "another took the slot" if hold is None else hold.reason
            return Refused(Refusal.ALREADY_RUNNING, f"{config_key} is being trained: {why}")
        place = None if item is not None else await self._free_place(engine)
        if place is None:
            return self._no_place() if item is None else _by_worker(config_key, item)
        taken.push_async_callback(place.release_in_time)
        # Before its record is overwritten: the holder before may have gone without a word.
        await end_gone_trainings(kv, self._runtime, await kv.entries(_job_key(config_key)), self.on_gone)
        job = TrainingJob(
            # The token sets two trainings of one second apart.
            job_id=f"{config_key}_{int(self._runtime.now_s())}_{self._runtime.pid}_{token}",
            config_key=config_key,
            holder=self._holder,
            node=self._runtime.hostname,
            pid=self._runtime.pid,
            started_s=self._runtime.now_s(),
            token=token,
            model_version=model_version,
        )
        await self._write(kv, job)
        leases = (own, place)
        renewals = TaskOwner(f"training slot {job.job_id}")
        for lease in leases:
            renewals.create_task(self._keep(job, lease), name=lease.name)
        self._held[job.job_id] = _Held(job, leases, renewals)
        taken.pop_all()
        log.info("training.slot_taken", job_id=job.job_id, config=config_key, token=token)
        return job

    async def release(
        self, job_id: str, *, error: str = "", model_path: str = "", val_loss: float | None = None
    ) -> bool:
        """Give the slot back and keep how the training ended.

        False if this process does not hold it, or did not for so long that its end was told by others.
        """
        held = self._held.pop(job_id, None)
        if held is None:
            return False
        await held.renewals.stop(RELEASE_S)
        async with asyncio.timeout(RELEASE_S):
            kv = (await self._open_engine()).kv
            entry = await kv.get(_job_key(held.job.config_key))
            # Also after the lease ran out, unless another has seen to the end meanwhile.
            by_others = (
                entry is None
                or not _is_open(entry, job_id)
                or not await delete_at(kv, entry.key, entry.revision)
            )
            for lease in held.leases:
                await lease.release()
            # The slot is free by now, so what its holder says is kept as far as it can be.
            said = {"error": error[:SAID_CHARS_MAX], "model_path": str(model_path)[:SAID_CHARS_MAX]}
            loss = held.job.best_val_loss if val_loss is None else number(val_loss)
            now_s = self._runtime.now_s()
            await _keep_end(kv, msgspec.structs.replace(held.job, best_val_loss=loss, ended_s=now_s, **said))
        return not by_others

    async def ended(self) -> list[TrainingJob]:
        """Return the trainings that had a slot and gave it back, oldest first, in whichever process."""
        return await read_records((await self._open_engine()).kv, ENDED, TrainingJob)

    async def update(self, job_id: str, *, epochs: int, best_val_loss: float | None = None) -> None:
        """Say how far a training is; `LeaseLost` when it has lost its slot and must stop."""
        held = self._held.get(job_id)
        if held is None:
            raise LeaseLost(job_id, token=0, reason="this process does not hold the slot")
        if held.leases[0].token != held.job.token:
            raise LeaseLost(job_id, token=held.job.token, reason="another training has the config")
        check_integer("epochs", epochs)
        held.job = msgspec.structs.replace(held.job, epochs=epochs, best_val_loss=number(best_val_loss))
        await self._write((await self._open_engine()).kv, held.job)

    def holds(self, job_id: str) -> bool:
        """Whether it is safe to go on with the training. May be asked from any thread."""
        held = self._held.get(job_id)
        return held is not None and all(lease.held for lease in held.leases)

    def can_be_read(self) -> bool:
        """Whether there is a store; looking must not make one."""
        return self._open_engine is not get_engine or has_store()

    async def running(self) -> list[TrainingJob]:
        """Return the trainings that have a slot, in whichever process."""
        kv = (await self._open_engine()).kv
        found = []
        for job in await read_records(kv, JOBS, TrainingJob):
            holder = await lease_holder(kv, config_lease(job.config_key))
            # What a dead trainer wrote stays until the next one overwrites it; its lease tells.
            if holder is not None and holder.holder == job.holder:
                found.append(job)
        return found

    async def of_workers(self) -> dict[str, WorkItem]:
        """Return the trainings of the loop that workers have, by config."""
        found, now_s = await trainings_of_workers((await self._open_engine()).queue), self._runtime.now_s()
        # The claim of a worker that was killed stands until somebody next asks the queue for work.
        return {config: item for config, item in found.items() if (item.lease_until_s or now_s + 1) > now_s}

    async def reported_by_workers(self) -> dict[str, RunningRecord]:
        """Return what workers say of the jobs that they have, by item."""
        return {each.job_id: each for each in await running_jobs((await self._open_engine()).kv)}

    async def can_train(self, config_key: str) -> Refused | None:
        """Return why there would be no slot now; None if there is one."""
        try:
            engine = await self._open_engine()
            hold = (await held_slots(engine.kv)).get(config_key)
            trained, places = await trainings_of_workers(engine.queue), await self._places(engine.kv)
        except Unavailable as error:
            return Refused(Refusal.LOCK_FAILED, str(error))
        if hold is not None:
            return Refused(Refusal.ALREADY_RUNNING, f"{config_key} is being trained: {hold.reason}")
        if config_key in trained:
            return _by_worker(config_key, trained[config_key])
        return self._no_place() if len(trained) + places >= self._slots_max else None

    async def release_all(self) -> None:
        for job_id in tuple(self._held):
            await self.release(job_id)

    async def _wait_for_worker(
        self, queue: WorkQueue, own: NamedLease, config_key: str, *, until_s: float
    ) -> WorkItem | None:
        """The training of the config that a worker still has at *until_s*; None if none has one.

        While *own* is held the queue hands out no other.
        """
        while (item := (await trainings_of_workers(queue)).get(config_key)) is not None:
            left_s = until_s - self._runtime.monotonic_s()
            if left_s <= 0:
                return item
            await self._runtime.sleep(min(WORKER_POLL_S, left_s))
            if own.left_s < self._config.lease_s / 2:
                await own.renew()
        return None

    async def _free_place(self, engine: Engine) -> NamedLease | None:
        """One of the places in all, of which trainings of workers take theirs, too."""
        by_workers = len(await trainings_of_workers(engine.queue))
        if by_workers + await self._places(engine.kv) >= self._slots_max:
            return None
        for place in range(self._slots_max):
            lease = self._lease(engine.kv, f"{PLACES}{place}")
            if await lease.try_acquire():
                return lease
        return None

    async def _places(self, kv: KeyValue) -> int:
        return len(await kv.entries(lease_key(PLACES)))

    def _no_place(self) -> Refused:
        text = f"{self._slots_max} trainings run, which is the most that may"
        return Refused(Refusal.MAX_CONCURRENT_REACHED, text)

    async def _keep(self, job: TrainingJob, lease: NamedLease) -> None:
        try:
            await lease.keep()
        except LeaseLost as lost:
            log.error("training.slot_lost", job_id=job.job_id, lease=lease.name, reason=lost.reason)

    async def _write(self, kv: KeyValue, job: TrainingJob) -> None:
        await write_record(kv, _job_key(job.config_key), job)

    def _lease(self, kv: KeyValue, name: str) -> NamedLease:
        return NamedLease(kv, self._runtime, name, holder=self._holder, config=self._config)


def config_lease(config_key: str) -> str:
    return work_lease(config_key, TRAIN)


async def trainings_of_workers(queue: WorkQueue) -> dict[str, WorkItem]:
    """The trainings of the loop that workers have now, by config."""
    claimed = await queue.claimed(limit=CLAIMED_MAX)
    return {item.group: item for item in claimed if item.kind == TRAIN and item.group}


async def held_slots(kv: KeyValue, entries: Iterable[Entry] | None = None) -> dict[str, SlotHold]:
    """Who holds the slot of each config that somebody holds, in whichever process.

    *entries* are those of the leases, if they are read already.
    """
    leases = [entry.key for entry in (await kv.entries(WORK_LEASES) if entries is None else entries)]
    configs = {group for group, kind in HeldWork.by(leases).kinds if kind == TRAIN}
    found = {}
    for config in configs:
        holder = await lease_holder(kv, config_lease(config))
        job = await read_record(kv, _job_key(config), TrainingJob)
        if holder is None:
            continue  # it was given back just now
        if job is not None and job.holder == holder.holder:
            who = f"process {job.pid} on {job.node}"
            found[config] = SlotHold(holder=who, since_s=job.started_s, job_id=job.job_id)
        else:
            found[config] = SlotHold(holder=holder.holder)
    return found


async def end_gone_trainings(
    kv: KeyValue,
    runtime: Runtime,
    entries: Iterable[Entry],
    tell: Callable[[TrainingJob], Awaitable[None]] | None,
) -> None:
    """Keep the end of each training of *entries* whose lease ran out, and *tell* of it.

    Of several processes that look at the same time one tells. Its record goes after that: what could not be
    told, or was not because its process was killed, the next to look tells, so it may be told twice.
    """
    for entry in entries:
        try:
            job = decode_entry(entry, TrainingJob)
        except Corrupt:  # `running` tells whoever asks for it; the loop must not stand still
            continue
        holder = await lease_holder(kv, config_lease(job.config_key))
        if holder is not None and (holder.holder, holder.token) == (job.holder, job.token):
            continue
        revision, is_first = entry.revision, job.ended_s is None
        if is_first:  # marked first: its holder may be giving it back just now
            why = f"process {job.pid} on {job.node} is gone: it told no end, and its lease ran out"
            job = msgspec.structs.replace(job, ended_s=runtime.now_s(), error=why)
            try:
                revision = await kv.update(entry.key, msgspec.json.encode(job), revision=revision)
            except RevisionMismatch:
                continue
        await _keep_end(kv, job, instead=is_first)
        if tell is not None:
            await tell(job)
        await delete_at(kv, entry.key, revision)
        log.warning("training.holder_gone", job_id=job.job_id, config=job.config_key, pid=job.pid)


def failed_training(job: TrainingJob) -> dict[str, Any]:
    """What TRAINING_FAILED says of a training that had a slot."""
    return {"config_key": job.config_key, "job_id": job.job_id, "error": job.error}


async def _keep_end(kv: KeyValue, job: TrainingJob, *, instead: bool = True) -> None:
    """Keep how *job* ended, *instead* of what was kept of it before: its holder knows best."""
    known, name = await kv.entries(ENDED), f"/{quote(job.job_id, safe='')}"
    before = [each for each in known if each.key.endswith(name)]
    if before and not instead:
        return
    for key in {each.key for each in (*known[: max(0, len(known) + 1 - ENDED_MAX)], *before)}:
        await kv.delete(key)
    # In the order of their ends.
    await kv.put(f"{ENDED}{job.ended_s:017.6f}{name}", msgspec.json.encode(job), ttl_s=ENDED_KEPT_S)


def _is_open(entry: Entry, job_id: str) -> bool:
    """Whether *entry* is of that training, and nobody has seen to its end yet."""
    try:
        job = decode_entry(entry, TrainingJob)
    except Corrupt:  # no one else can have told the end by it
        return True
    return job.job_id == job_id and job.ended_s is None


def _job_key(config_key: str) -> str:
    return JOBS + quote(config_key, safe="")


def _by_worker(config_key: str, item: WorkItem) -> Refused:
    text = f"{config_key} is being trained: the run's {item.id} is with worker {item.holder}"
    return Refused(Refusal.ALREADY_RUNNING, text)
