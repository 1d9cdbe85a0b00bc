"""Who may train now: one training per config, and a few in all, whether workers or others do it.

A slot is two leases in the engine: one for the config and one of the numbered places. Their holder renews
them; when it dies, both are free after the lease. The config's is the lease under which the queue hands out
no training of it, and nobody gets it while a worker has one: the loop and a trainer of one's own never train
the same config at once. Its token goes with every write that the training makes, so a trainer that lost its
slot cannot spoil what the next one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.leases import LeaseConfig, NamedLease, lease_holder, lease_key
from ringrift.engine.opening import get_engine, has_store
from ringrift.engine.ports import Engine, Entry, KeyValue, WorkItem, WorkQueue
from ringrift.engine.work_rules import WORK_LEASES, HeldWork, work_lease
from ringrift.errors import ConfigError, Conflict, LeaseLost, Unavailable
from ringrift.learning.plan.stages import SlotHold
from ringrift.runtime import Runtime, system_runtime
from ringrift.task_owner import TaskOwner

log = structlog.get_logger()

SLOTS_MAX = 8
JOBS = "training/job/"
PLACES = "training/slot/"
RELEASE_S = 5.0
TRAIN = "train"  # the kind of the loop's trainings in the queue
CLAIMED_MAX = 10_000  # items that are looked through for trainings; there are no more workers
WORKER_POLL_S = 1.0
LEASE = LeaseConfig(lease_s=90.0, renew_s=10.0)


class Refusal(StrEnum):
    """Why there is no slot."""

    CLUSTER_UNHEALTHY = "cluster_unhealthy"
    ALREADY_RUNNING = "already_running"
    MAX_CONCURRENT_REACHED = "max_concurrent_reached"
    LOCK_FAILED = "lock_failed"  # the engine did not answer


@dataclass(frozen=True, slots=True)
class Refused:
    """No slot, for a reason."""

    reason: Refusal
    message: str


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A training that has a slot, as everybody sees it."""

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


@dataclass(slots=True)
class _Held:
    job: TrainingJob
    leases: tuple[NamedLease, ...]
    keepers: TaskOwner  # renew the leases


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

    async def request(
        self, config_key: str, *, model_version: str = "", wait_s: float = 0.0
    ) -> TrainingJob | Refused:
        """Take a slot for *config_key*, waiting up to *wait_s* for its config to be free.

        Whoever waits while a worker trains it is next: no worker begins another training of it meanwhile.
        """
        try:
            return await self._request(config_key, model_version=model_version, wait_s=wait_s)
        except Unavailable as error:
            return Refused(Refusal.LOCK_FAILED, str(error))

    async def _request(self, config_key: str, *, model_version: str, wait_s: float) -> TrainingJob | Refused:
        engine = await self._open_engine()
        kv, until_s = engine.kv, self._runtime.monotonic_s() + wait_s
        own = self._lease(kv, config_lease(config_key))
        try:
            token = await own.acquire(wait_s=wait_s)
            item = await self._wait_for_worker(engine.queue, own, config_key, until_s=until_s)
        except Conflict:
            hold = (await held_slots(kv)).get(config_key)
            why = "another took the slot" if hold is None else hold.reason
            return Refused(Refusal.ALREADY_RUNNING, f"{config_key} is being trained: {why}")
        place = None if item is not None else await self._free_place(engine)
        if place is None:
            await own.release()
            return self._no_place() if item is None else _by_worker(config_key, item)
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
        leases = (own, place)
        keepers = TaskOwner(f"training slot {job.job_id}")
        for lease in leases:
            keepers.create_task(self._keep(job, lease), name=lease.name)
        self._held[job.job_id] = _Held(job, leases, keepers)
        await self._write(kv, job)
        log.info("training.slot_taken", job_id=job.job_id, config=config_key, token=token)
        return job

    async def release(self, job_id: str) -> bool:
        """Give the slot back; False if this process does not hold it."""
        held = self._held.pop(job_id, None)
        if held is None:
            return False
        await held.keepers.stop(RELEASE_S)
        async with asyncio.timeout(RELEASE_S):
            kv = (await self._open_engine()).kv
            if held.leases[0].held:
                await kv.delete(JOBS + quote(held.job.config_key, safe=""))
            for lease in held.leases:
                await lease.release()
        return True

    async def update(self, job_id: str, *, epochs: int, best_val_loss: float | None = None) -> None:
        """Say how far a training is; `LeaseLost` when it has lost its slot and must stop."""
        held = self._held.get(job_id)
        if held is None:
            raise LeaseLost(job_id, token=0, reason="this process does not hold the slot")
        if held.leases[0].token != held.job.token:
            raise LeaseLost(job_id, token=held.job.token, reason="another training has the config")
        held.job = msgspec.structs.replace(held.job, epochs=epochs, best_val_loss=best_val_loss)
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
        for entry in await kv.entries(JOBS):
            job = decode_entry(entry, TrainingJob)
            holder = await lease_holder(kv, config_lease(job.config_key))
            # What a dead trainer wrote stays until the next one overwrites it; its lease tells.
            if holder is not None and holder.holder == job.holder:
                found.append(job)
        return found

    async def of_workers(self) -> dict[str, WorkItem]:
        """Return the trainings of the loop that workers have, by config."""
        return await trainings_of_workers((await self._open_engine()).queue)

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
        for number in range(self._slots_max):
            lease = self._lease(engine.kv, f"{PLACES}{number}")
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
        await kv.put(JOBS + quote(job.config_key, safe=""), msgspec.json.encode(job))

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
        told = await kv.get(JOBS + quote(config, safe=""))
        job = None if told is None else decode_entry(told, TrainingJob)
        if holder is None:
            continue  # it was given back just now
        if job is not None and job.holder == holder.holder:
            who = f"process {job.pid} on {job.node}"
            found[config] = SlotHold(holder=who, since_s=job.started_s, job_id=job.job_id)
        else:
            found[config] = SlotHold(holder=holder.holder)
    return found


def _by_worker(config_key: str, item: WorkItem) -> Refused:
    text = f"{config_key} is being trained: the run's {item.id} is with worker {item.holder}"
    return Refused(Refusal.ALREADY_RUNNING, text)
