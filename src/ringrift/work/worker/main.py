"""`python -m ringrift.work.worker.main --slots N --name NAME`: a worker as a process of its own.

SIGTERM and SIGINT let the jobs seal what they have, give the items back and end it; a second signal ends it
at once. So does the end of the process named by --parent: nobody would ask the worker to stop any more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil
import structlog

from ringrift.engine.lock_files import LockFile
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import Claim, Claimant, Engine, KeyValue
from ringrift.engine.work_rules import ENDED
from ringrift.errors import ConfigError, Conflict, LeaseLost, RingRiftError, Unavailable
from ringrift.events.dead_letter_queue import ProcessDeadLetters
from ringrift.events.positions import process_log_connection
from ringrift.events.tracing import continued, extract
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.files import HeldPath, hold_folder, make_folders, private_umask
from ringrift.process import process_scope
from ringrift.runtime import Runtime, first_error, first_of, result_before, system_runtime
from ringrift.settings import Settings, load_settings
from ringrift.work.job.folder import JobFolder, JobFolders, JobRecord
from ringrift.work.job.host import JobHost
from ringrift.work.job.protocol import end_processes_in
from ringrift.work.job.runner import Fate
from ringrift.work.limits import EmergencyPlaces, EmergencyState
from ringrift.work.tasks import DurationStore
from ringrift.work.worker.claim import SELFPLAY, ClaimedJob, WorkerContext, WorkerEvents
from ringrift.work.worker.records import (
    TELL_S,
    WORKER_RENEW_S,
    WORKER_TTL_S,
    WorkerConfig,
    WorkerRecord,
    own_capabilities,
    own_capability,
    visible_gpus,
    why_set_aside,
    worker_key,
)

# What killed workers left behind: processes that still run, claims nobody keeps, folders of ended items.
#
# A worker holds a lock on its name for as long as it lives, however it dies. A folder whose worker's lock is
# free is nobody's: its processes are ended and its item goes back at once, before its lease runs out.


log = structlog.get_logger()

ABANDONED_MAX = 5  # an item that workers die over so often may be the reason
_NAMES = ".workers"


class WorkerNames:
    """The names that living workers of this node hold."""

    def __init__(self, root: Path) -> None:
        self._folder = root / _NAMES
        self._held: dict[str, LockFile] = {}

    def take(self, name: str) -> None:
        """Hold *name* until `let_go` or the end of the process; `Conflict` if a living worker has it."""
        lock = self._lock(name)
        if not lock.try_lock():
            lock.close()
            raise Conflict(f"a worker called {name!r} runs already on this data folder")
        self._held[name] = lock

    def let_go(self) -> None:
        for lock in self._held.values():
            lock.close()
        self._held.clear()

    def is_free(self, name: str) -> bool:
        """Whether no living process has *name*; our own is not free."""
        if name in self._held:
            return False
        lock = self._lock(name)
        try:
            return lock.try_lock()
        finally:
            lock.close()

    def _lock(self, name: str) -> LockFile:
        make_folders(self._folder)
        return LockFile(self._folder / f"{name}.lock")


class Recovery:
    """Puts in order what is nobody's; harmless if several workers do it at the same time."""

    def __init__(self, engine: Engine, folders: JobFolders, names: WorkerNames, events: WorkerEvents) -> None:
        self._engine, self._folders, self._names, self._events = engine, folders, names, events

    async def at_start(self, own_name: str) -> None:
        """Whatever carries our name is of a worker before us: we hold the name and have not begun."""
        await self._sweep(lambda name: name == own_name or self._names.is_free(name))
        await self._give_back_claims_of(own_name)

    async def _give_back_claims_of(self, name: str) -> None:
        """What was claimed and had no folder yet: nothing of it has run, so it costs no attempt."""
        for item in await self._engine.queue.claimed():
            if item.holder != name:
                continue
            log.warning("worker.found_claimed", item=item.id, worker=name)
            try:
                await self._engine.queue.release(item.id, token=item.token)
            except LeaseLost:
                continue  # it ran out just now

    async def now_and_then(self) -> None:
        await self._sweep(self._names.is_free)

    async def _sweep(self, is_dead: Callable[[str], bool]) -> None:
        for folder in await asyncio.to_thread(self._folders.all):
            record = await asyncio.to_thread(folder.read_record)
            if record is None or self._folders.of(record.item_id).path != folder.path:
                # Half made, or a record that its job made up, which must not reach another item.
                await self._remove_if_ended(folder)
                continue
            if record.worker is not None and await asyncio.to_thread(is_dead, record.worker):
                await self._take_back(folder, record)
            item = await self._engine.queue.get(record.item_id)
            if item is None or item.state in ENDED:
                await asyncio.to_thread(folder.remove)

    async def _remove_if_ended(self, folder: JobFolder) -> None:
        """Go by the name of the folder, where nothing in it can be believed."""
        item = await self._engine.queue.get(self._folders.item_of(folder))
        if item is not None and item.state in ENDED:
            await asyncio.to_thread(folder.remove)

    async def _take_back(self, folder: JobFolder, record: JobRecord) -> None:
        if not await _is_unchanged(folder, record):
            return
        ended = await asyncio.to_thread(end_processes_in, folder.out)
        if not await _is_unchanged(folder, record):
            return
        worker, record.worker, record.abandoned = record.worker, None, record.abandoned + 1
        try:
            await asyncio.to_thread(folder.write_record, record)
        except OSError as error:  # a full disk; whoever claims the item next makes the folder his own
            log.warning("worker.folder_not_left", item=record.item_id, error=str(error))
        log.warning("worker.found_abandoned", item=record.item_id, worker=worker, processes=ended)
        await self._events.orphaned(record.item_id, record.kind)
        queue = self._engine.queue
        try:
            if record.abandoned < ABANDONED_MAX:
                await queue.release(record.item_id, token=record.token)
            else:
                why = f"{record.abandoned} workers were killed while they worked on it"
                await queue.fail(record.item_id, token=record.token, error=why)
        except LeaseLost:
            return  # it ran out already


async def _is_unchanged(folder: JobFolder, record: JobRecord) -> bool:
    """Whether no other attempt or sweep has made the folder its own since *record* was read."""
    return await asyncio.to_thread(folder.read_record) == record


# A worker: so many slots, each claims an item, carries it out, and claims the next.
#
# Self-play is what fills the time that nothing else needs. While all slots are busy and one of them plays
# games that can be handed over, the worker claims other work as well, asks that job to yield, and does the
# claimed work in its slot. There are never more jobs than slots.
#
# The state of a worker is in the engine alone. Its record says what it is and how many slots are free; it can
# be killed at any moment, and the next worker on the node puts in order what it left.


TIDY_S = 60.0
LAST_REPORT_S = 5.0
_MEGABYTE = 2**20


@dataclass(slots=True)
class _Waiting:
    """Claimed work for which a slot is being freed."""

    claim: Claim
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """Runs until it is asked to stop."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        config = context.config
        self._claimant = Claimant(
            worker=config.name,
            node=config.node,
            capabilities=config.capabilities | {own_capability(config.name)},
            kinds=config.kinds,
        )
        self._names = WorkerNames(context.folders.root)
        self._recovery = Recovery(context.engine, context.folders, self._names, context.events)
        # By token: an item can come back to another slot before its last claim has ended here.
        self._jobs: dict[int, ClaimedJob] = {}
        self._changed = asyncio.Event()
        self._slots_changed = asyncio.Event()
        self._waiting: _Waiting | None = None
        # Its file may be made by hand, of which the queue knows nothing.
        places = EmergencyPlaces(context.settings.data_dir, self._kv)
        self._emergency = EmergencyState(places, runtime=context.runtime)
        self._started_s = context.runtime.now_s()
        self._done = self._failed = 0
        self._set_aside = ""  # why we may not claim anything

    async def run(self, stop: asyncio.Event) -> None:
        """Work until *stop* is set: then jobs seal what they have and their items go back.

        Raises `Conflict` if a living worker of this node has the same name, and `Unavailable` when our own
        engine is gone for good: only a new process helps.
        """
        config = self._context.config
        await asyncio.to_thread(self._names.take, config.name)
        try:
            await self._recovery.at_start(config.name)
            log.info("worker.started", name=config.name, slots=config.slots, node=config.node)
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(self._be_present(stop)),
                    tasks.create_task(self._tidy()),
                    tasks.create_task(self._stop_jobs(stop)),
                ]
                slots = [tasks.create_task(self._serve(stop)) for _ in range(config.slots)]
                slots.append(tasks.create_task(self._make_way(stop)))
                await asyncio.wait(slots)
                for helper in helpers:
                    helper.cancel()
        finally:
            await self._announce_stop()
            self._names.let_go()
        if why := self._context.engine.failure:
            raise Unavailable(why)
        log.info("worker.stopped", name=config.name, done=self._done, failed=self._failed)

    async def _announce_stop(self) -> None:
        """Take the record away; one that stays, because the engine is away, runs out by itself."""
        try:
            async with asyncio.timeout(LAST_REPORT_S):
                await self._context.engine.kv.delete(worker_key(self._context.config.name))
        except (RingRiftError, TimeoutError) as error:
            log.warning("worker.presence_not_told", error=str(error))

    # --- slots --------------------------------------------------------------------------------------

    async def _serve(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                claim = self._take_waiting()
                if claim is None and not await self._is_set_aside():
                    claim = await self._next_claim(self._claimant, stop)
                if claim is not None and await self._is_set_aside():
                    await self._context.engine.queue.release(claim.id, token=claim.token)
                elif claim is not None:
                    await self._carry_out(claim, stop)
                if self._set_aside:
                    await self._pause(stop)
            except RingRiftError as error:
                # The engine is away; the lease, and with it the item, takes care of itself.
                log.error("worker.slot_failed", error=f"{type(error).__name__}: {error}")
                self._end_without_engine(stop)
                await self._pause(stop)

    def _end_without_engine(self, stop: asyncio.Event) -> None:
        """Stop if our own engine is gone for good: no retry helps, and nothing that we hold can be kept."""
        if self._context.engine.failure:
            stop.set()

    async def _kv(self) -> KeyValue:
        return self._context.engine.kv

    async def _is_set_aside(self) -> bool:
        """Whether the control process, or an emergency stop, lets us claim nothing.

        Asked before and after a claim is waited for.
        """
        why = await why_set_aside(self._context.engine.kv, self._context.config.name)
        if not why and (emergency := await self._emergency.notice()) is not None:
            why = f"emergency stop: {emergency.reason}"
        if why != self._set_aside:
            self._set_aside = why
            self._changed.set()
            log.warning("worker.set_aside" if why else "worker.resumed", reason=why)
        return bool(why)

    async def _next_claim(self, claimant: Claimant, stop: asyncio.Event) -> Claim | None:
        config = self._context.config
        claiming = self._context.engine.queue.claim(
            claimant, lease_s=config.lease_s, wait_s=config.claim_wait_s
        )
        return next(iter(await result_before(claiming, stop.wait()) or ()), None)

    async def _carry_out(self, claim: Claim, stop: asyncio.Event) -> None:
        job = self._jobs[claim.token] = ClaimedJob(claim, self._context)
        self._tell_slots()
        if stop.is_set():
            job.ask_to_stop()
        try:
            with continued(extract(claim.trace)):
                fate = await job.carry_out()
        finally:
            del self._jobs[claim.token]
            self._tell_slots()
        self._done += fate is Fate.COMPLETE
        self._failed += fate is Fate.FAIL
        if fate in (Fate.RELEASE, Fate.DROP) and self._waiting is None:
            await self._pause(stop)  # what just went back would come again at once

    def _tell_slots(self) -> None:
        self._changed.set()
        self._slots_changed.set()

    async def _pause(self, stop: asyncio.Event) -> None:
        await first_of(stop.wait(), self._context.runtime.sleep(self._context.config.pause_s))

    async def _stop_jobs(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()
        for job in tuple(self._jobs.values()):
            job.ask_to_stop()

    # --- work that should not wait for games ---------------------------------------------------------

    async def _make_way(self, stop: asyncio.Event) -> None:
        """While all slots are busy, claim what is not self-play and free a slot for it."""
        others = replace(
            self._claimant, except_kinds=frozenset({SELFPLAY}) | self._context.config.left_to_others
        )
        while not stop.is_set():
            self._slots_changed.clear()
            try:
                if self._to_yield() is None or await self._is_set_aside():
                    await first_of(stop.wait(), self._slots_changed.wait())
                elif (claim := await self._next_claim(others, stop)) is not None:
                    await self._do_instead(claim, stop)
            except RingRiftError as error:
                log.error("worker.making_way_failed", error=f"{type(error).__name__}: {error}")
                await self._pause(stop)

    def _to_yield(self) -> ClaimedJob | None:
        """Of the jobs that can yield, the one that was claimed first; None while a slot is free."""
        if len(self._jobs) < self._context.config.slots:
            return None
        able = (job for job in self._jobs.values() if job.can_yield)
        return min(able, key=lambda job: job.claimed_s, default=None)

    async def _do_instead(self, claim: Claim, stop: asyncio.Event) -> None:
        """Ask a job to yield and keep *claim* until a slot takes it; give it back if none will."""
        job = None if stop.is_set() or await self._is_set_aside() else self._to_yield()
        waiting = _Waiting(claim)
        try:
            if job is not None:
                log.info("worker.makes_way", item=job.item_id, waits=claim.id, kind=claim.kind)
                self._waiting = waiting
                job.ask_to_yield()
                runtime_s = self._context.runtime.monotonic_s() - job.claimed_s
                await self._context.events.made_way(job.claim, claim, runtime_s=runtime_s)
                await self._keep_until_taken(waiting, stop)
        finally:
            self._waiting = None
        if not waiting.taken.is_set():  # a slot became free meanwhile, and claims it, or we stop
            await self._context.engine.queue.release(claim.id, token=claim.token)

    async def _keep_until_taken(self, waiting: _Waiting, stop: asyncio.Event) -> None:
        config, claim = self._context.config, waiting.claim
        while not (waiting.taken.is_set() or stop.is_set()):
            renewing = self._context.runtime.sleep(config.renew_s)
            await first_of(waiting.taken.wait(), stop.wait(), renewing)
            if waiting.taken.is_set() or stop.is_set():
                return
            try:
                await self._context.engine.queue.renew(claim.id, token=claim.token, lease_s=config.lease_s)
            except LeaseLost:
                waiting.taken.set()  # by another worker
                return

    def _take_waiting(self) -> Claim | None:
        """The work for which a slot was freed, once."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.taken.is_set():
            return None
        waiting.taken.set()
        return waiting.claim

    # --- beside them --------------------------------------------------------------------------------

    async def _be_present(self, stop: asyncio.Event) -> None:
        """Keep the record fresh: soon after every change, and before it runs out."""
        config, runtime = self._context.config, self._context.runtime
        while True:
            self._changed.clear()
            try:
                content = msgspec.json.encode(self._record(stopping=stop.is_set()))
                await self._context.engine.kv.put(worker_key(config.name), content, ttl_s=WORKER_TTL_S)
            except RingRiftError as error:
                log.warning("worker.presence_not_told", error=str(error))
                self._end_without_engine(stop)
            await runtime.sleep(TELL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(WORKER_RENEW_S - TELL_S):
                    await self._changed.wait()

    def _record(self, *, stopping: bool) -> WorkerRecord:
        config, memory = self._context.config, psutil.virtual_memory()
        return WorkerRecord(
            name=config.name,
            node=config.node,
            pid=self._context.runtime.pid,
            slots=config.slots,
            busy=len(self._jobs),
            kinds=None if config.kinds is None else tuple(sorted(config.kinds)),
            capabilities=tuple(sorted(config.capabilities)),
            cpus=config.cpus,
            gpus=config.gpus,
            memory_mb=memory.total // _MEGABYTE,
            memory_free_mb=memory.available // _MEGABYTE,
            load=round(os.getloadavg()[0], 2),
            started_s=self._started_s,
            at_s=self._context.runtime.now_s(),
            jobs=tuple(dict.fromkeys(job.item_id for job in self._jobs.values())),
            done=self._done,
            failed=self._failed,
            stopping=stopping,
            set_aside=self._set_aside,
        )

    async def _tidy(self) -> None:
        while True:
            await self._context.runtime.sleep(TIDY_S)
            try:
                await self._recovery.now_and_then()
            except (RingRiftError, OSError) as error:
                log.warning("worker.tidying_failed", error=str(error))


WRONG_INPUT, ENDED_AT_ONCE, UNAVAILABLE = 2, 3, 5
LOOK_FOR_PARENT_S = 1.0
HOSTS = ".hosts"  # in the folder of the jobs


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    runtime = system_runtime()
    gpus = visible_gpus()
    try:
        settings = load_settings().settings
        if options.folder is not None:
            _hold(settings.data_dir, options.folder)
        os.umask(private_umask(settings.data_dir))
        config = WorkerConfig(
            name=options.name or f"{runtime.hostname}-1",
            node=options.node or runtime.hostname,
            slots=options.slots,
            kinds=frozenset(options.kinds) if options.kinds else None,
            left_to_others=frozenset(options.left_to_others),
            capabilities=own_capabilities(gpus) | frozenset(options.capabilities),
            gpus=gpus,
            lease_s=options.lease_s or settings.job_lease,
        )
        settings = replace(settings, process_name=f"worker-{config.name}"[:100])
        process_scope().put(Settings, settings)  # for who asks the process, as the engine does
        asyncio.run(_work(config, settings, options.parent))
    except asyncio.CancelledError:
        return ENDED_AT_ONCE
    except (ConfigError, Conflict) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_INPUT
    except RingRiftError as error:
        log.error("worker.ended", error=f"{type(error).__name__}: {error}")
        return UNAVAILABLE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ringrift.work.worker.main", description=__doc__)
    parser.add_argument("--slots", type=int, default=1, help="jobs at a time")
    parser.add_argument("--name", help="name of this worker, one per living process")
    parser.add_argument("--node", help="name of this machine; its host name if none")
    parser.add_argument("--kinds", nargs="+", default=[], help="kinds of jobs to take; any if none")
    parser.add_argument("--left-to-others", nargs="+", default=[], help="kinds for which no game yields")
    parser.add_argument("--capabilities", nargs="+", default=[], help="beside cpu and gpu")
    parser.add_argument("--lease-s", type=float, help="lease of a claim, in seconds; as in the settings")
    parser.add_argument("--folder", help="end at once if the data folder is another one than this")
    parser.add_argument("--parent", type=int, help="end at once when this process is not the parent any more")
    return parser


def _hold(folder: Path, identity: str) -> None:
    """Work in the folder of the process that started this one, and in no other; `Conflict` if it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Conflict(f"{folder} cannot be opened: {error.strerror}") from None
    try:
        if HeldPath(folder, os.fstat(descriptor)).identity != identity:
            raise Conflict(f"{folder} was exchanged for another one before this worker began")
        hold_folder(folder, descriptor)
    finally:
        os.close(descriptor)


async def _work(config: WorkerConfig, settings: Settings, parent: int | None) -> None:
    stop = asyncio.Event()
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop, this)
    runtime, engine, router = system_runtime(), await get_engine(), _router_of(settings)
    host = JobHost(
        runtime,
        folder=settings.job_dir / HOSTS,
        name=config.name,
        kinds=config.kinds,
        jobs_max=settings.job_host_jobs,
    )
    context = WorkerContext(
        config=config,
        engine=engine,
        runtime=runtime,
        settings=settings,
        folders=JobFolders(settings.job_dir),
        events=WorkerEvents(router.publish, node=config.node),
        durations=DurationStore(),
        host=host,
    )
    try:
        with first_error():
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_end_with(parent, this, runtime))
                await router.start()
                await Worker(context).run(stop)
                watching.cancel()
    finally:
        await host.close()
        await router.stop()
        await close_engine()


def _router_of(settings: Settings) -> UnifiedEventRouter:
    """The router of this process, for whoever asks the process for it as well."""
    around = Surroundings(
        settings=settings, log_connection=process_log_connection(settings), dead_letters=ProcessDeadLetters()
    )
    router = UnifiedEventRouter(surroundings=around)
    process_scope().put(UnifiedEventRouter, router)
    return router


async def _end_with(parent: int | None, task: asyncio.Task[None] | None, runtime: Runtime) -> None:
    """The guard of the parent does this sooner, unless both were killed."""
    if parent is None or task is None:
        return
    while os.getppid() == parent:
        await runtime.sleep(LOOK_FOR_PARENT_S)
    log.warning("worker.parent_gone", parent=parent)
    task.cancel()


def _ask_to_stop(stop: asyncio.Event, task: asyncio.Task[None] | None) -> None:
    if stop.is_set() and task is not None:
        task.cancel()
    stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
