"""The measured durations, in the key-value port: the last of each kind, config and node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote, unquote

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.opening import shared_kv
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RevisionMismatch, Unavailable
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.durations_rules import (
    FAR_S,
    DurationEstimate,
    Measured,
    MeasuredSeries,
    TaskOutcome,
    estimate,
    timeout_s,
)
from ringrift.work.task_types import canonical_kind

PREFIX = "durations/"
TASKS_KEPT = 50  # of each kind, config and node
SERIES_MAX = 5_000  # of each kind; the one that nobody added to for longest goes first
CACHE_S = 30.0
TRIES_MAX = 8


class DurationBook:
    """Reads and writes the measurements. Several processes may write at once."""

    def __init__(
        self, kv: Callable[[], Awaitable[KeyValue]] | None = None, *, runtime: Runtime | None = None
    ) -> None:
        self._kv, self._runtime = kv or shared_kv, runtime or system_runtime()
        self._cached: dict[str, tuple[float, list[MeasuredSeries]]] = {}

    async def record(
        self, kind: str, config: str, node: str, seconds: float, *, outcome: TaskOutcome = TaskOutcome.OK
    ) -> None:
        """Add one measurement."""
        kind = canonical_kind(kind)
        if not seconds >= 0:
            raise ConfigError(f"a task took {seconds} s; a duration is 0 or more")
        kv, key = await self._kv(), _key(kind, config, node)
        task = Measured(self._runtime.now_s(), seconds, TaskOutcome(outcome))
        for _ in range(TRIES_MAX):
            entry = await kv.get(key)
            known = [] if entry is None else _tasks(entry)
            value = msgspec.json.encode([*known, task][-TASKS_KEPT:])
            try:
                if entry is None:
                    await self._make_room(kv, kind)
                    await kv.create(key, value, ttl_s=FAR_S)
                else:
                    await kv.update(key, value, revision=entry.revision, ttl_s=FAR_S)
            except (AlreadyExists, RevisionMismatch):
                continue
            self._cached.pop(kind, None)
            return
        raise Unavailable(f"{TRIES_MAX} others wrote the durations of {kind} at the same time")

    async def estimate(self, kind: str, config: str = "", node: str = "") -> DurationEstimate:
        kind = canonical_kind(kind)
        series = await self._series(kind)
        return estimate(series, kind=kind, config=config, node=node, now_s=self._runtime.now_s())

    async def timeout_s(self, kind: str, config: str = "") -> float:
        """How long a job of *kind* may run before it counts as stuck."""
        kind = canonical_kind(kind)
        return timeout_s(await self._series(kind), kind=kind, config=config, now_s=self._runtime.now_s())

    async def _series(self, kind: str) -> list[MeasuredSeries]:
        now_s = self._runtime.monotonic_s()
        cached = self._cached.get(kind)
        if cached is not None and now_s - cached[0] < CACHE_S:
            return cached[1]
        entries = await (await self._kv()).entries(_prefix(kind))
        series = [_read(entry) for entry in entries]
        self._cached[kind] = (now_s, series)
        return series

    async def _make_room(self, kv: KeyValue, kind: str) -> None:
        entries = await kv.entries(_prefix(kind))
        if len(entries) >= SERIES_MAX:
            oldest = min(entries, key=lambda entry: entry.revision)
            await kv.delete(oldest.key, revision=oldest.revision)


def get_duration_book() -> DurationBook:
    """Return the book of this process."""
    return process_scope().get(DurationBook, DurationBook)


def _prefix(kind: str) -> str:
    return f"{PREFIX}{quote(kind, safe='')}/"


def _key(kind: str, config: str, node: str) -> str:
    return f"{_prefix(kind)}{quote(config, safe='')}/{quote(node, safe='')}"


def _read(entry: Entry) -> MeasuredSeries:
    kind, config, node = (unquote(part) for part in entry.key.removeprefix(PREFIX).split("/"))
    return MeasuredSeries(kind, config, node, _tasks(entry))


def _tasks(entry: Entry) -> list[Measured]:
    try:
        return decode_as(entry.value, list[Measured])
    except UNREADABLE as error:
        advice = "Delete the key; the durations are measured anew."
        raise Corrupt(entry.key, found=f"no list of measurements: {error}", advice=advice) from None
