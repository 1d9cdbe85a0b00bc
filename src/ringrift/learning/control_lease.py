"""Who controls: one process per engine and per data folder, with its token on everything that it writes.

Three things together. A lease in the engine says who it is and that it lives. A token, which grows with
every holder, stands on each of its writes to keys and on each of its orders; the store refuses one that is
not the newest, so a holder that was held up for longer than its lease can do no harm when it goes on. And a
lock on the data folder, which the system frees with the process, keeps out a process with another engine.
None of them helps a process whose folder or database was exchanged under it: it looks at both before each
write and each renewal, and has lost control if a path leads elsewhere.

A holder whose lease ran out, as after a sleep of the machine, takes it again if nobody else has controlled
since. One that is known to be dead does not have to be waited for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from ringrift.engine.fencing import fenced
from ringrift.engine.leases import CONTROL_LEASE as NAME
from ringrift.engine.leases import (
    ControlHolder,
    LeaseConfig,
    NamedLease,
    end_lease,
    lease_holder,
    lease_key,
    read_holder,
)
from ringrift.engine.ports import Engine, KeyValue, WriteGuard
from ringrift.errors import Conflict, ControlLost, LeaseLost, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.store_check import mark_outside_a_run, require_whole_store
from ringrift.process import process_scope
from ringrift.process_identity import has_open, is_stopped, own_start_s, process_numbers
from ringrift.runtime import Runtime
from ringrift.settings import Settings

TOKEN_KEY = "control/token"
RENEWALS_IN_A_LEASE = 8
TRIES = 3

log = structlog.get_logger()


class FolderClaim(Protocol):
    """The lock on the data folder; see `MasterLoopGuard`, which is the one of the product."""

    @property
    def folder_identity(self) -> str: ...

    @property
    def is_held(self) -> bool: ...

    def try_acquire(self) -> bool: ...

    def exchanged(self) -> str: ...

    def show(self) -> None: ...

    def release(self) -> None: ...


class ControlLease:
    """Control of one engine and one data folder, from `take` to `release`."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        guard: FolderClaim,
        settings: Settings,
        *,
        has_daemons: bool = True,
    ) -> None:
        """A program that runs the loop alone, beside daemons of its own, says that it has not the run's."""
        kv = engine.kv
        self._engine, self._kv, self._runtime = engine, kv, runtime
        self._guard, self._settings = guard, settings
        self.me = ControlHolder(
            host=runtime.hostname,
            boot=runtime.boot_id,
            numbers=process_numbers(),
            pid=os.getpid(),
            began_s=own_start_s(),
            folder=str(settings.data_dir.resolve()),
            since_s=runtime.now_s(),
            has_daemons=has_daemons,
        )
        record, lease_s = msgspec.json.encode(self.me).decode(), settings.control_lease
        self._config = LeaseConfig(lease_s=lease_s, renew_s=lease_s / RENEWALS_IN_A_LEASE)
        self._lease = NamedLease(kv, runtime, NAME, holder=record, config=self._config)
        self._token = 0
        self.before: ControlHolder | None = None  # who controlled last, once this one has taken control
        self._refusal: LeaseLost | None = None
        self._looking: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.on_proved: Callable[[], None] | None = None  # called whenever `keep` found the lease its own

    @property
    def guard(self) -> WriteGuard:
        """What every write in the name of the control process carries."""
        return WriteGuard(TOKEN_KEY, self._token)

    @property
    def node(self) -> str:
        """What other nodes call this one."""
        return self._settings.node_name or self.me.host

    @property
    def held(self) -> bool:
        """Whether it is safe to act as the one in control, by this process's own clock."""
        return self._lease.held

    @property
    def token(self) -> int:
        """Of the lease, as others see it too; `LeaseLost` when it is not held."""
        return self._lease.token

    @property
    def folder_identity(self) -> str:
        """What tells the data folder from one that is put in its place."""
        return self._guard.folder_identity

    def exchanged(self) -> str:
        """What became of the data folder or the database if its path leads elsewhere by now; else ""."""
        return self._guard.exchanged() or self._engine.exchanged

    async def take(self) -> None:
        """Take control, or raise `Conflict` that says who has it."""
        # The folder first: whoever holds its lock lives, so a lease beside a free lock is of a dead process.
        locked = self._guard.try_acquire()
        try:
            await self._take_lease(locked=locked)
            if not locked and not await self._is_holder_stopped():
                await self._wait_for_folder()
            self.before = await control_holder(self._kv)
            record = msgspec.json.encode(self.me)
            # Only with the lease still ours: a slow process may have lost it again since it took it.
            only_if = WriteGuard(lease_key(NAME), self._lease.token)
            self._token = await self._kv.put(TOKEN_KEY, record, guard=only_if)
        except BaseException:
            await self._give_back()
            raise
        # Last, when nobody else can be in control any more: it may have been exchanged on the way here.
        if problem := self.exchanged():
            await self._give_back()
            raise Conflict(problem)
        self._guard.show()
        process_scope().put(ControlLease, self)  # for who asks what this process may do

    async def _take_lease(self, *, locked: bool) -> None:
        for _ in range(TRIES):  # whoever had it may just have gone
            if await self._lease.try_acquire():
                return
            seen = await lease_holder(self._kv, NAME)
            if seen is None:
                continue
            holder = read_holder(seen.holder)
            if holder is None or not (locked and holder.is_dead(self._runtime)):
                raise Conflict(_controlled_by(holder, self._settings))
            log.info("control.holder_is_dead", pid=holder.pid, since_s=holder.since_s)
            await end_lease(self._kv, NAME, holder=seen.holder)
        raise Conflict(_controlled_by(None, self._settings))

    async def _is_holder_stopped(self) -> bool:
        """Another process has the folder, so it lives. It does no harm if it is stopped, and of this engine.

        A lease that ran out here proves nothing by itself: this may be a copy of the holder's database.
        Raises `Conflict` if the folder is another engine's.
        """
        last, database = await control_holder(self._kv), self._settings.coordinator_db
        if last is None or last.folder != self.me.folder or last.is_dead(self._runtime):
            raise Conflict(_folder_is_taken(self.me.folder, database))
        if not last.is_seen(self._runtime):
            return False
        opened = await asyncio.to_thread(has_open, last.pid, database)
        if opened is False:
            raise Conflict(_folder_is_taken(self.me.folder, database))
        if not (opened and is_stopped(last.pid)):
            return False
        log.warning("control.taken_from_a_holder_that_does_not_move", holder=str(last))
        return True

    async def _wait_for_folder(self) -> None:
        """Take the folder from a holder that cannot be seen if it does nothing for the length of a lease.

        One that moves renews its lease here, or finds that its database is another one, and ends.
        """
        await self._lease.release()
        for _ in range(RENEWALS_IN_A_LEASE + 1):
            await self._runtime.sleep(self._config.renew_s)
            if (seen := await lease_holder(self._kv, NAME)) is not None:
                raise Conflict(_controlled_by(read_holder(seen.holder), self._settings))
            if self._guard.try_acquire():
                break
        else:
            log.warning("control.taken_from_a_holder_that_does_not_move", seen=False)
        await self._take_lease(locked=self._guard.is_held)

    async def keep(self) -> None:
        """Renew for as long as nobody else has control; ends with `ControlLost`."""
        look = asyncio.Event()
        self._looking = asyncio.get_running_loop(), look
        while True:
            try:
                async with asyncio.timeout(self._config.renew_s):
                    await look.wait()
            except TimeoutError:
                pass
            look.clear()
            if problem := self.exchanged():
                log.error("control.lost", reason=problem, done="the run ends; nothing more is written")
                raise ControlLost(token=self._token, reason=problem)
            try:
                if await self._renew() and self.on_proved is not None:
                    self.on_proved()
                # Also writes the PID file again if somebody removed it.
                await asyncio.to_thread(self._guard.try_acquire)
            except Unavailable as error:
                # Nothing can be written, by nobody: what is written later still carries the token.
                log.debug("control.not_renewed", error=str(error))

    async def is_ours(self) -> bool:
        """Whether this process can prove now that it controls, whatever an event says.

        Also makes `keep` look at once, which ends the run if another has taken over. False as well while the
        store does not answer, for then nothing is proved.
        """
        # By the token: a lease that ran out harms nothing while nobody else has taken over.
        self.look_now()
        if self.exchanged():
            return False
        try:
            entry = await self._kv.get(TOKEN_KEY)
        except Unavailable as error:
            log.warning("control.not_proved", error=str(error))
            return False
        return entry is not None and entry.revision == self._token

    def note_refusal(self, lost: LeaseLost) -> None:
        """A write was refused for its token: look at once. May be called from any thread."""
        self._refusal = lost
        self.look_now()

    def look_now(self) -> None:
        """Let `keep` look at the lease without waiting for its turn. May be called from any thread."""
        if self._looking is not None:
            loop, look = self._looking
            loop.call_soon_threadsafe(look.set)

    async def _renew(self) -> bool:
        """Extend the lease, or take it again; return whether that proves control now."""
        refusal, self._refusal, taken = self._refusal, None, False
        if refusal is None:
            try:
                await self._lease.renew()
                return True
            except LeaseLost:  # it ran out; nobody is harmed if nobody else had control since
                taken = await self._lease.try_acquire()
        entry = await self._kv.get(TOKEN_KEY)
        if entry is None or entry.revision != self._token:
            holder = None if entry is None else read_holder(entry.value)
            raise ControlLost(token=self._token, reason=f"{holder or 'another process'} took over")
        if not taken:
            # An answer of ours got lost, or another is about to write its token: the next look tells.
            await end_lease(self._kv, NAME, holder=self._lease.holder)
        return taken

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Engine]:
        """Control for a block; yields the engine with the token on its writes. For long, `keep` beside it.

        Raises `Conflict` that says who has control, `Corrupt` if the run had come further than the store is.
        """
        settings = self._settings
        await self.take()
        try:
            mine = fenced(self._engine, self.guard, on_lost=self.note_refusal, exchanged=self.exchanged)
            await require_whole_store(
                mine.kv, self._runtime, database=settings.coordinator_db, data_dir=settings.data_dir
            )
            yield mine
        finally:
            await self.release()

    async def release(self) -> None:
        """Give control up, if it is still ours. Safe to call twice."""
        await self._give_back()

    async def _give_back(self) -> None:
        if process_scope().peek(ControlLease) is self:
            process_scope().drop(ControlLease)
        try:
            await self._lease.release()
        except Unavailable as error:
            log.warning("control.release_unanswered", error=str(error))  # others see that we are gone
        self._guard.release()


CONTROL_NAME = "control"


def tell_elected(router: UnifiedEventRouter, lease: ControlLease) -> None:
    """This process has found its store whole and leads by its lease; whoever follows the leader looks."""
    me, term = lease.node, lease.guard.revision
    tell = router.publish_sync
    tell("STARTUP_STATE_VALIDATED", {"node_id": me, "epoch": term, "valid": True}, CONTROL_NAME)
    before = {} if lease.before is None else {"previous_leader": lease.before.host}
    tell("LEADER_ELECTED", {"leader_id": me, "term": term, **before}, CONTROL_NAME)


async def tell_lost(router: UnifiedEventRouter, lease: ControlLease, reason: str) -> None:
    """Inside this process only: it may write nothing more, and others see who leads by the lease."""
    me, term = lease.node, lease.guard.revision
    lost = {"old_leader_id": me, "reason": reason, "term": term}
    await router.publish("LEADER_LOST", lost, CONTROL_NAME, route_to_cross_process=False)


async def control_holder(kv: KeyValue) -> ControlHolder | None:
    """Who took control last; None if nobody ever did."""
    entry = await kv.get(TOKEN_KEY)
    return None if entry is None else read_holder(entry.value)


@asynccontextmanager
async def in_control(
    engine: Engine, runtime: Runtime, guard: FolderClaim, settings: Settings
) -> AsyncIterator[Engine]:
    """Take the control process's place for a moment; yields the engine with the token on its writes.

    Raises `Conflict` if a run has control, `Corrupt` if the run had come further than the store is. What is
    written meanwhile is covered by the high-water mark before control is given up.
    """
    async with ControlLease(engine, runtime, guard, settings).hold() as mine:
        yield mine
        await mark_outside_a_run(mine.kv, runtime, settings.data_dir)


def check_folder_is_free(guard: FolderClaim, settings: Settings, *, to_begin_anew: bool) -> None:
    """Before an engine is made or set aside: none is in a data folder that another process controls."""
    if guard.try_acquire():
        return
    if to_begin_anew:
        raise Conflict(_controlled_by(None, settings))
    if not settings.coordinator_db.exists():
        raise Conflict(_folder_is_taken(str(settings.data_dir), settings.coordinator_db))


def _controlled_by(holder: ControlHolder | None, settings: Settings) -> str:
    folder = settings.data_dir if holder is None else holder.folder
    return (
        f"{holder or 'another process'} runs the control process of {folder} already; "
        "stop it first, or give this one another folder with --data"
    )


def _folder_is_taken(folder: str, database: Path) -> str:
    return (
        f"a control process with another engine than {database} has the data folder "
        f"{folder}; stop it first, or use its RINGRIFT_COORDINATOR_DB"
    )
