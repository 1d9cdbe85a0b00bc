"""What happens after a crash: restart policy, the breaker that stops a cascade, the ledger and its store."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from ringrift.daemons.types import DaemonCategory, DaemonType, RestartTier
from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.lock_files import LockFile
from ringrift.errors import ConfigError
from ringrift.files import make_folders, replace_file
from ringrift.runtime import Runtime, back_off_s, system_runtime
from ringrift.task_owner import TaskOwner

# The one restart authority: what happens after a crash. Pure; times and luck come in.
#
# A run of at least `stable_s` was healthy, so its crash is answered at once. Shorter runs wait: exponential,
# with jitter, at least `cooldown_s` apart. More than `max_restarts` in a row, or more than `hourly_max` in an
# hour, spend the budget: a critical daemon is then tried at long intervals, any other is given up until a
# person clears it or a day has passed.


HOUR_S = 3600.0
CRASH_LOOP_WINDOW_S = 300.0
CRASH_LOOP_RESTARTS = 3
FORGIVEN_AFTER_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often one daemon is tried again."""

    max_restarts: int = 5
    delay_s: float = 5.0
    delay_s_max: float = 300.0
    jitter_share: float = 0.1
    cooldown_s: float = 10.0
    stable_s: float = 60.0
    degraded_retry_s: float | None = None  # None: give up when the budget is spent

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            may_lack = item.name == "degraded_retry_s" and value is None
            if not may_lack and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(f"{item.name} is {value!r}; it must be a number")
        if self.max_restarts < 0 or not 0 <= self.delay_s <= self.delay_s_max:
            raise ConfigError(f"a restart policy cannot be {self}")
        if not 0 <= self.jitter_share < 1:
            raise ConfigError(f"jitter_share is {self.jitter_share}; it must be from 0 to below 1")

    @property
    def hourly_max(self) -> int:
        return 2 * self.max_restarts


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """What is remembered of one daemon's crashes. Times are wall-clock: the record outlives the process."""

    in_a_row: int = 0  # crashes without a stable run between them
    recent_s: tuple[float, ...] = ()  # restarts of the last hour
    failed_for_good_s: float | None = None
    total: int = 0
    last_error: str = ""

    @property
    def restarts_in_a_row(self) -> int:
        """The restarts that answered those crashes; the one that ended it all was not answered."""
        return self.in_a_row if self.failed_for_good_s is None else self.in_a_row - 1

    def within(self, seconds: float, *, now_s: float) -> int:
        """Return how many restarts the last *seconds* saw."""
        return sum(1 for at_s in self.recent_s if now_s - seconds < at_s <= now_s)

    def failed_for_good(self, *, now_s: float) -> bool:
        """Return whether it was given up and not forgiven yet."""
        return self.failed_for_good_s is not None and now_s - self.failed_for_good_s < FORGIVEN_AFTER_S


@dataclass(frozen=True, slots=True)
class RestartVerdict:
    """What to do about a crash."""

    restart_after_s: float | None  # None: never
    tier: RestartTier
    crash_loop: bool  # entered with this crash
    reason: str


def on_crash(
    record: RestartRecord, policy: RestartPolicy, *, now_s: float, ran_s: float, luck: float, error: str
) -> tuple[RestartRecord, RestartVerdict]:
    """Decide about a crash after a run of *ran_s*; *luck* from -1 to 1 spreads the waits."""
    stable = ran_s >= policy.stable_s
    in_a_row = 1 if stable else record.in_a_row + 1
    kept = tuple(at_s for at_s in record.recent_s if now_s - HOUR_S < at_s <= now_s)
    record = replace(record, in_a_row=in_a_row, recent_s=kept, last_error=error)
    if in_a_row > policy.max_restarts or len(kept) >= policy.hourly_max:
        return _budget_spent(record, policy, now_s=now_s)
    waits_s = back_off_s(in_a_row, first_s=policy.delay_s, longest_s=policy.delay_s_max)
    delay_s = 0.0 if stable else waits_s * (1.0 + policy.jitter_share * luck)
    if kept:
        delay_s = max(delay_s, policy.cooldown_s - ran_s)
    was_looping = record.within(CRASH_LOOP_WINDOW_S, now_s=now_s) >= CRASH_LOOP_RESTARTS
    record = replace(record, recent_s=(*kept, now_s), total=record.total + 1)
    looping = record.within(CRASH_LOOP_WINDOW_S, now_s=now_s) >= CRASH_LOOP_RESTARTS
    tier = RestartTier.ELEVATED if looping else RestartTier.NORMAL
    text = f"restart {in_a_row} of {policy.max_restarts} in {delay_s:.1f} s"
    return record, RestartVerdict(delay_s, tier, looping and not was_looping, text)


def clear(record: RestartRecord) -> RestartRecord:
    """Forget the crashes; keep the total."""
    return RestartRecord(total=record.total)


def _budget_spent(
    record: RestartRecord, policy: RestartPolicy, *, now_s: float
) -> tuple[RestartRecord, RestartVerdict]:
    spent = f"{record.in_a_row - 1} restarts in a row and {len(record.recent_s)} in an hour did not help"
    if policy.degraded_retry_s is None:
        record = replace(record, failed_for_good_s=now_s)
        return record, RestartVerdict(None, RestartTier.DEGRADED, False, spent)
    record = replace(record, total=record.total + 1)
    text = f"{spent}; next try in {policy.degraded_retry_s:.0f} s"
    return record, RestartVerdict(policy.degraded_retry_s, RestartTier.DEGRADED, False, text)


# Stops a cascade: when one category, or everything, keeps crashing, restarts wait together.
#
# Critical daemons are never blocked, and nothing is in the first minutes, when much starts at once.


STARTUP_S = 300.0
CRASHES_KEPT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """How many restarts in a window are too many, and how long to wait then."""

    restarts: int
    cooldown_s: float
    window_s: float = 300.0
    counts_globally: bool = True


LIMITS: dict[DaemonCategory, Limit] = {
    DaemonCategory.EVENT: Limit(10, 30, counts_globally=False),
    DaemonCategory.PIPELINE: Limit(8, 45, counts_globally=False),
    DaemonCategory.FEEDBACK: Limit(8, 45, counts_globally=False),
    DaemonCategory.AUTONOMOUS: Limit(8, 30, counts_globally=False),
    DaemonCategory.SYNC: Limit(6, 60),
    DaemonCategory.HEALTH: Limit(6, 60),
    DaemonCategory.QUEUE: Limit(5, 60),
    DaemonCategory.RESOURCE: Limit(5, 90),
    DaemonCategory.EVALUATION: Limit(5, 90),
    DaemonCategory.DISTRIBUTION: Limit(4, 90),
    DaemonCategory.RECOVERY: Limit(8, 180, window_s=600),
    DaemonCategory.PROVIDER: Limit(3, 120),
    DaemonCategory.MISC: Limit(4, 120),
}
GLOBAL_LIMIT = Limit(25, 120)


@dataclass(frozen=True, slots=True)
class Tripped:
    """A breaker that just opened; *category* is None for the global one."""

    category: DaemonCategory | None
    restarts: int
    until_s: float


class CascadeBreaker:
    """Counts restarts by category. Times are monotonic and come in."""

    def __init__(self, *, started_s: float) -> None:
        self._started_s = started_s
        self._restarts: dict[DaemonCategory | None, deque[float]] = {}
        self._open_until_s: dict[DaemonCategory | None, float] = {}

    def record(self, category: DaemonCategory, *, now_s: float) -> list[Tripped]:
        """Count a restart; return the breakers that it opened."""
        opened = self._count(category, LIMITS[category], now_s=now_s)
        if LIMITS[category].counts_globally:
            opened += self._count(None, GLOBAL_LIMIT, now_s=now_s)
        return opened

    def blocked(self, category: DaemonCategory, *, critical: bool, now_s: float) -> tuple[float, str]:
        """Return until when restarts of *category* wait, and why; (0.0, "") when they don't."""
        if critical or now_s - self._started_s < STARTUP_S:
            return 0.0, ""
        asked: list[DaemonCategory | None] = [category]
        if LIMITS[category].counts_globally:
            asked.append(None)
        until_s, who = max(((self._open_until_s.get(key, 0.0), key) for key in asked), key=lambda p: p[0])
        if until_s <= now_s:
            return 0.0, ""
        name = "too many daemons crash" if who is None else f"too many {who} daemons crash"
        return until_s, f"{name}; restarts wait {until_s - now_s:.0f} s"

    def status(self, *, now_s: float) -> dict[str, float]:
        """Return the open breakers with the seconds they stay open."""
        return {
            "global" if key is None else key.value: until_s - now_s
            for key, until_s in self._open_until_s.items()
            if until_s > now_s
        }

    def _count(self, key: DaemonCategory | None, limit: Limit, *, now_s: float) -> list[Tripped]:
        times = self._restarts.setdefault(key, deque(maxlen=CRASHES_KEPT_MAX))
        times.append(now_s)
        while times[0] <= now_s - limit.window_s:
            times.popleft()
        if len(times) < limit.restarts or self._open_until_s.get(key, 0.0) > now_s:
            return []
        if now_s - self._started_s < STARTUP_S:
            return []
        self._open_until_s[key] = now_s + limit.cooldown_s
        return [Tripped(key, len(times), now_s + limit.cooldown_s)]


# Where the restart ledger lives between two lives of the manager.


log = structlog.get_logger()

_LOCK_STEP_S, _LOCK_STEPS = 0.01, 500
_JUST_WRITTEN_S = 60.0  # by another manager, while we waited; later than that, the clock was set back


class LedgerStore(Protocol):
    """Keeps the records by daemon name."""

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        """Return what was kept, if it is at most a day old."""
        ...

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        """Replace these records and leave the others, which may be another manager's; `OSError` if not."""
        ...


class MemoryLedger:
    """Forgets with the process; may be handed from one manager to the next."""

    def __init__(self) -> None:
        self._records: dict[str, RestartRecord] = {}
        self._saved_s = 0.0

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        return dict(self._records) if now_s - self._saved_s < FORGIVEN_AFTER_S else {}

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        self._records.update(changed)
        self._saved_s = now_s


class _Document(msgspec.Struct):
    timestamp: float
    counts: dict[str, int] = {}
    restart_timestamps: dict[str, list[float]] = {}
    permanently_failed: dict[str, float] = {}
    totals: dict[str, int] = {}
    errors: dict[str, str] = {}


class JsonLedger:
    """One small JSON file, replaced atomically. An unreadable file counts as empty, and says so.

    Several managers may write to it, in one process or in many: each changes only its own records.
    """

    def __init__(self, path: Path, runtime: Runtime | None = None) -> None:
        self._path, self._runtime = path, runtime or system_runtime()
        self._lock_file: LockFile | None = None
        self._turn = threading.Lock()

    def load(self, *, now_s: float) -> dict[str, RestartRecord]:
        try:
            document = decode_as(self._path.read_bytes(), _Document)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            log.warning("daemons.ledger_unreadable", path=str(self._path), error=str(error))
            return {}
        if not -_JUST_WRITTEN_S <= now_s - document.timestamp < FORGIVEN_AFTER_S:
            return {}
        names = {*document.counts, *document.restart_timestamps, *document.permanently_failed}
        return {
            name: RestartRecord(
                in_a_row=document.counts.get(name, 0),
                recent_s=tuple(document.restart_timestamps.get(name, ())),
                failed_for_good_s=document.permanently_failed.get(name),
                total=document.totals.get(name, 0),
                last_error=document.errors.get(name, ""),
            )
            for name in names
        }

    async def save(self, changed: Mapping[str, RestartRecord], *, now_s: float) -> None:
        for _ in range(_LOCK_STEPS):
            if await asyncio.to_thread(self._merge, changed, now_s):
                return
            await self._runtime.sleep(_LOCK_STEP_S)
        raise TimeoutError(f"{self._path} is being written by another process that does not end")

    def _merge(self, changed: Mapping[str, RestartRecord], now_s: float) -> bool:
        """Read, change and write the file with others kept out; False if another has it just now."""
        with self._turn:
            if self._lock_file is None:
                make_folders(self._path.parent)
                self._lock_file = LockFile(self._path.with_suffix(".lock"))
            if not self._lock_file.try_lock():
                return False
            try:
                document = _document({**self.load(now_s=now_s), **changed}, now_s)
                replace_file(self._path, msgspec.json.encode(document))
            finally:
                self._lock_file.unlock()
        return True


def _document(records: Mapping[str, RestartRecord], now_s: float) -> _Document:
    return _Document(
        timestamp=now_s,
        counts={name: record.in_a_row for name, record in records.items()},
        restart_timestamps={name: list(record.recent_s) for name, record in records.items()},
        permanently_failed={
            name: record.failed_for_good_s
            for name, record in records.items()
            if record.failed_for_good_s is not None
        },
        totals={name: record.total for name, record in records.items()},
        errors={name: record.last_error for name, record in records.items()},
    )


# The restart records in use, and their way to the store.


class RestartLedger:
    """Every crash is decided and written down here. A failing store is reported and never stops a restart."""

    def __init__(self, store: LedgerStore, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime
        self._records: dict[str, RestartRecord] | None = None
        self._changed: dict[str, RestartRecord] = {}  # not written yet
        self._tasks = TaskOwner("daemon ledger")
        self.store_failures = 0

    def open(self) -> None:
        """Forget a writer of an earlier loop."""
        self._tasks = TaskOwner("daemon ledger")

    def look_again(self) -> None:
        """Read the store anew with the next question, where another process writes it."""
        if not self._changed:
            self._records = None

    def record(self, daemon_type: DaemonType) -> RestartRecord:
        return self._loaded().get(str(daemon_type), RestartRecord())

    def crashed(
        self, daemon_type: DaemonType, policy: RestartPolicy, *, ran_s: float, error: str
    ) -> RestartVerdict:
        """Decide about a crash and write it down."""
        record, verdict = on_crash(
            self.record(daemon_type),
            policy,
            now_s=self._runtime.now_s(),
            ran_s=ran_s,
            luck=self._runtime.rng.uniform(-1.0, 1.0),
            error=error,
        )
        self._keep(daemon_type, record)
        return verdict

    def clear(self, daemon_type: DaemonType) -> None:
        """Forget the crashes of a daemon."""
        if str(daemon_type) in self._loaded():
            self._keep(daemon_type, clear(self.record(daemon_type)))

    def failed_for_good(self, daemon_type: DaemonType) -> bool:
        return self.record(daemon_type).failed_for_good(now_s=self._runtime.now_s())

    def recent(self, types: Iterable[DaemonType], *, within_s: float) -> dict[DaemonType, int]:
        """Return the number of restarts of the last *within_s* by daemon, without zeros."""
        now_s = self._runtime.now_s()
        counts = {t: self.record(t).within(within_s, now_s=now_s) for t in types}
        return {daemon_type: count for daemon_type, count in counts.items() if count}

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until all is written, at most *timeout_s*."""
        await self._tasks.wait(timeout_s)

    def _loaded(self) -> dict[str, RestartRecord]:
        if self._records is None:
            self._records = self._store.load(now_s=self._runtime.now_s())
        return self._records

    def _keep(self, daemon_type: DaemonType, record: RestartRecord) -> None:
        self._loaded()[str(daemon_type)] = self._changed[str(daemon_type)] = record
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # cleared from outside a loop, where nobody would come back to write it
            asyncio.run(self._write())
            return
        if not len(self._tasks):
            self._tasks.create_task(self._write(), name="daemon-ledger")

    async def _write(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            try:
                await self._store.save(changed, now_s=self._runtime.now_s())
            except OSError as error:
                self.store_failures += 1
                self._changed = {**changed, **self._changed}  # written with the next change
                log.warning("daemons.ledger_not_written", error=str(error))
                return
