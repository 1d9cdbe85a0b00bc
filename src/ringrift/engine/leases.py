"""A named lease above the key-value port: one holder at a time, with a fencing token.

The token is the revision at which the lease was acquired; it stays the same over renewals and grows with
every holder. A holder stops by its own clock at two thirds of the lease, counted from before the call that
granted it, so that it has stopped before the store lets another in, whatever the network or the scheduler
did in between. That clock goes on while the machine sleeps, as the engine's does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_never

import msgspec
import structlog

from ringrift.decoding import decode_as
from ringrift.engine.arguments import check_key, check_lease, check_seconds, check_text, check_wait
from ringrift.engine.encoding import UNREADABLE, decode_entry
from ringrift.engine.limits import LEASE_S_MAX
from ringrift.engine.ports import Entry, KeyValue
from ringrift.engine.records import delete_at
from ringrift.engine.waiting import entry_changed
from ringrift.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    LeaseLost,
    RevisionMismatch,
    Unavailable,
)
from ringrift.process_identity import is_alive, process_numbers
from ringrift.runtime import Runtime

log = structlog.get_logger()

LEASE_PREFIX = "lease/"
CONTROL_LEASE = "control"  # of the process that plans, of which an engine has one


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """Seconds throughout."""

    lease_s: float = 15.0
    renew_s: float = 2.0

    @property
    def margin_s(self) -> float:
        """How long before its end a holder stops."""
        return self.lease_s / 3

    def __post_init__(self) -> None:
        check_lease(self.lease_s)
        check_seconds("renew_s", self.renew_s, high=LEASE_S_MAX)
        # One hung call plus one pause is the longest that a renewal can be late.
        if not 0 < 2 * self.renew_s < self.margin_s:
            raise ConfigError(
                f"lease_s {self.lease_s:g} is too short for renew_s {self.renew_s:g}: "
                "a third of the lease must be longer than twice the renewal period"
            )


# --- decisions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holding:
    """What a holder knows: its token, the revision to renew from, and its own deadlines."""

    token: int
    revision: int
    renew_at_s: float
    stop_at_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask the store for more time, and give it this long to answer."""

    answer_within_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The safe time is over."""


def granted(config: LeaseConfig, *, revision: int, asked_s: float, token: int | None = None) -> Holding:
    """Return the holding after the store said yes to a call made at *asked_s*."""
    return Holding(
        token=revision if token is None else token,
        revision=revision,
        renew_at_s=asked_s + config.renew_s,
        stop_at_s=asked_s + config.lease_s - config.margin_s,
    )


def decide(holding: Holding, config: LeaseConfig, now_s: float) -> Wait | Renew | Stop:
    """Say what a holder does now."""
    left_s = holding.stop_at_s - now_s
    if left_s <= 0:
        return Stop()
    if now_s < holding.renew_at_s:
        return Wait(min(holding.renew_at_s - now_s, left_s))
    return Renew(answer_within_s=min(config.renew_s, left_s))


# --- the lease ----------------------------------------------------------------------------------------


class LeaseRecord(msgspec.Struct, frozen=True):
    """Who holds a lease, as stored. The token is 0 until the first renewal: then it is the revision."""

    holder: str
    token: int = 0


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who holds a lease, as seen by others."""

    holder: str
    token: int
    expires_s: float | None


def lease_key(name: str) -> str:
    """The key under which the lease *name* stands while somebody holds it."""
    return LEASE_PREFIX + name


async def lease_holder(kv: KeyValue, name: str) -> LeaseHolder | None:
    """Return the present holder of the lease *name*."""
    entry = await kv.get(LEASE_PREFIX + name)
    return None if entry is None else _seen(entry)


async def end_lease(kv: KeyValue, name: str, *, holder: str) -> bool:
    """Free the lease *name* of a holder that is known to be dead; False if it has another one by now."""
    entry = await kv.get(LEASE_PREFIX + name)
    if entry is None or _seen(entry).holder != holder:
        return False
    return await delete_at(kv, entry.key, entry.revision)


async def lease_changed(kv: KeyValue, name: str, *, timeout_s: float) -> None:
    """Wait until the lease *name* is free or changes, or the time is over."""
    check_wait("timeout_s", timeout_s)
    key = LEASE_PREFIX + name
    try:
        async with asyncio.timeout(timeout_s):
            if (entry := await kv.get(key)) is None:
                return
            await entry_changed(kv, entry)
    except TimeoutError:
        return


class NamedLease:
    """One contender's view of one lease. Not shared between tasks."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime, name: str, *, holder: str, config: LeaseConfig | None = None
    ) -> None:
        self._kv, self._runtime = kv, runtime
        check_key(LEASE_PREFIX + name)
        check_text("holder", holder)
        self.name, self.holder = name, holder
        self._config = config or LeaseConfig()
        self._holding: Holding | None = None

    @property
    def held(self) -> bool:
        """Whether it is safe to act as the holder, by this process's own clock."""
        return self._holding is not None and self._runtime.boot_s() < self._holding.stop_at_s

    @property
    def left_s(self) -> float:
        """For how long it is still safe to act as the holder; 0 when it is not."""
        return max(0.0, self._holding.stop_at_s - self._runtime.boot_s()) if self._holding else 0.0

    @property
    def token(self) -> int:
        """The fencing token; `LeaseLost` when the lease is not held."""
        if self._holding is None or not self.held:
            token = 0 if self._holding is None else self._holding.token
            raise LeaseLost(self.name, token=token, reason="it is not held, or not renewed in time")
        return self._holding.token

    async def try_acquire(self) -> bool:
        """Take the lease if it is free."""
        asked_s = self._runtime.boot_s()
        try:
            revision = await self._kv.create(self._key, self._record(0), ttl_s=self._config.lease_s)
        except AlreadyExists:
            return False
        self._holding = granted(self._config, revision=revision, asked_s=asked_s)
        return True

    async def acquire(self, *, wait_s: float) -> int:
        """Take the lease as soon as it is free and return the token; `Conflict` after *wait_s*."""
        check_wait("wait_s", wait_s)
        deadline_s = self._runtime.monotonic_s() + wait_s
        while not await self.try_acquire():
            left_s = deadline_s - self._runtime.monotonic_s()
            if left_s <= 0:
                seen = await lease_holder(self._kv, self.name)
                raise Conflict(f"lease {self.name!r} is held by {'another' if seen is None else seen.holder}")
            await lease_changed(self._kv, self.name, timeout_s=left_s)
        return self.token

    async def renew(self) -> None:
        """Extend the lease; `LeaseLost` if another has it or the safe time is over."""
        token, holding = self.token, self._holding
        assert holding is not None
        asked_s = self._runtime.boot_s()
        try:
            revision = await self._extend(holding)
        except RevisionMismatch as error:
            self._holding = None
            raise LeaseLost(self.name, token=token, reason=str(error)) from error
        self._holding = granted(self._config, revision=revision, asked_s=asked_s, token=token)

    async def release(self) -> None:
        """Give the lease back, if it is still ours."""
        holding, self._holding = self._holding, None
        if holding is None:
            return
        try:
            await self._kv.delete(self._key, revision=await self._newest(holding))
        except RevisionMismatch:
            return  # it ran out, or another has it: there is nothing to give back

    async def _extend(self, holding: Holding) -> int:
        """Store a renewal. One of ours that was stored before, though nobody told us, is no loss."""
        record, ttl_s = self._record(holding.token), self._config.lease_s
        try:
            return await self._kv.update(self._key, record, revision=holding.revision, ttl_s=ttl_s)
        except RevisionMismatch:
            newest = await self._newest(holding)
            if newest == holding.revision:
                raise
            return await self._kv.update(self._key, record, revision=newest, ttl_s=ttl_s)

    async def _newest(self, holding: Holding) -> int:
        """The revision of the lease as it is stored, if it is still this holding."""
        entry = await self._kv.get(self._key)
        if entry is None:
            return holding.revision
        seen = _seen(entry)
        is_ours = (seen.holder, seen.token) == (self.holder, holding.token)
        return entry.revision if is_ours else holding.revision

    @asynccontextmanager
    async def hold(self, *, wait_s: float = 0.0) -> AsyncIterator[int]:
        """Hold the lease for the length of a block, renewing it; the block is cancelled when it is lost.

        Raises `Conflict` when the lease cannot be had, and `LeaseLost` after a block that lost it.
        """
        token = await self.acquire(wait_s=wait_s)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self.keep())
                yield token
                renewing.cancel()
        except BaseExceptionGroup as group:
            raise _what_ended(group) from None
        finally:
            await self.release_in_time()

    async def keep(self) -> None:
        """Renew for as long as it can be done; ends with `LeaseLost`."""
        while True:
            holding = self._holding
            if holding is None:
                raise LeaseLost(self.name, token=0, reason="it is not held")
            match decide(holding, self._config, self._runtime.boot_s()):
                case Wait(seconds):
                    await self._runtime.sleep(seconds)
                case Renew(answer_within_s):
                    await self._renew_within(answer_within_s)
                case Stop():
                    raise LeaseLost(self.name, token=holding.token, reason="it was not renewed in time")
                case other:
                    assert_never(other)

    async def _renew_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.renew()
        except TimeoutError:
            return  # no answer is an answer: the deadline decides
        except Unavailable:
            await self._runtime.sleep(min(seconds, self._config.renew_s / 4))

    async def release_in_time(self) -> None:
        """The same for whoever is leaving: it waits for no answer longer than a renewal."""
        try:
            async with asyncio.timeout(self._config.renew_s):
                await self.release()
        except (TimeoutError, Unavailable) as error:
            # Nobody is harmed: it runs out by itself.
            log.warning("lease.release.unanswered", lease=self.name, reason=str(error))

    @property
    def _key(self) -> str:
        return LEASE_PREFIX + self.name

    def _record(self, token: int) -> bytes:
        return msgspec.json.encode(LeaseRecord(self.holder, token))


def _what_ended(group: BaseExceptionGroup) -> BaseException:
    """The loss of the lease outranks what the cancelled block made of it."""
    lost = group.subgroup(LeaseLost)
    return (lost or group).exceptions[0]


def _seen(entry: Entry) -> LeaseHolder:
    record = decode_entry(entry, LeaseRecord, what="this is no lease")
    return LeaseHolder(record.holder, record.token or entry.revision, entry.expires_s)


# The lease of the control process, whose holder tells who it is.


class ControlHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Which process controls, where, and since when."""

    host: str
    boot: str
    numbers: str  # where process numbers are counted: containers have numbers of their own
    pid: int
    began_s: float
    folder: str
    since_s: float
    has_daemons: bool = True  # of the run: managers in other processes ask it instead of starting their own

    def is_seen(self, runtime: Runtime) -> bool:
        """Whether its process can be looked at from here."""
        here = runtime.hostname, runtime.boot_id, process_numbers()
        return (self.host, self.boot, self.numbers) == here

    def is_dead(self, runtime: Runtime) -> bool:
        """Whether it is known to have ended; False if that cannot be seen from here."""
        if self.host != runtime.hostname:
            return False
        if self.boot != runtime.boot_id:
            return True
        return self.numbers == process_numbers() and not is_alive(self.pid, self.began_s)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host} (since {since})"


def read_holder(record: bytes | str) -> ControlHolder | None:
    """The holder in a record; None for one that this version cannot read."""
    try:
        return decode_as(record, ControlHolder)
    except UNREADABLE:
        return None


@dataclass(frozen=True, slots=True)
class ControlSeen:
    """Who controls now, as seen by others."""

    holder: ControlHolder | None  # None: its record cannot be read
    token: int
    expires_s: float | None

    def __str__(self) -> str:
        return str(self.holder or "another process")


async def control_seen(kv: KeyValue, runtime: Runtime) -> ControlSeen | None:
    """Who controls now; None if nobody does, or the holder is known to be dead."""
    seen = await lease_holder(kv, CONTROL_LEASE)
    if seen is None:
        return None
    holder = read_holder(seen.holder)
    if holder is not None and await asyncio.to_thread(holder.is_dead, runtime):
        return None
    return ControlSeen(holder, seen.token, seen.expires_s)
