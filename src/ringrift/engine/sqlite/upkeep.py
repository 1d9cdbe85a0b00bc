"""Upkeep of the database: expiry, retention, vacuum. One process at a time does it, by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ringrift.engine.lock_files import LockFile
from ringrift.engine.ports import CursorKey
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.events import forget_old_positions, trim_some
from ringrift.engine.sqlite.kv import drop_old_tombstones, expire_some
from ringrift.engine.sqlite.queue_ops import end_due
from ringrift.engine.sqlite.queue_retention import WorkSweep, drop_empty_lanes
from ringrift.engine.sqlite.writer import Operation, Transaction
from ringrift.runtime import Runtime

log = structlog.get_logger()

_VACUUM_PAGES = 256
_TRIM_STEPS = 50
_SLEPT_S = 60.0  # a round that comes this late was held up, and with it perhaps everybody
_RARELY = 60  # rounds between two looks at what changes slowly


class DatabaseUpkeep:
    """Says when upkeep is due and what there is to do; the writer does it."""

    def __init__(self, config: SqliteConfig, runtime: Runtime, sweep_blobs: Callable[[], None]) -> None:
        self._config, self._runtime, self._sweep_blobs = config, runtime, sweep_blobs
        self._work = WorkSweep(config.limits)
        self._rounds = 0
        self._lock = LockFile(config.database.with_name(config.database.name + ".upkeep"))
        self._next_s = self._schedule()
        self._awake_since_s = self._round_s = runtime.boot_s()
        self._held_for: CursorKey | None = None

    def wait_s(self) -> float:
        return max(0.0, self._next_s - self._runtime.monotonic_s())

    def operations(self) -> Sequence[Operation[Any]]:
        self._next_s = self._schedule()
        # Whoever comes first keeps the task for its life.
        if not self._lock.try_lock():
            return ()
        self._rounds += 1
        limits, by_age = self._config.limits, self._is_age_due()
        steps: list[Operation[Any]] = [end_due, expire_some]
        steps += [lambda tx: self._work.step(tx, by_age=by_age)]
        steps += [lambda tx: self._trim(tx, by_age=by_age)] * _TRIM_STEPS
        steps += [_vacuum_some]
        if self._rounds % _RARELY == 1:
            steps += [lambda tx: drop_old_tombstones(tx, limits), drop_empty_lanes]
            self._sweep_blobs()
            if by_age:
                steps += [lambda tx: forget_old_positions(tx, limits)]
        return steps

    def _is_age_due(self) -> bool:
        """Not soon after a start or a sleep of the machine: nobody has seen what grew old meanwhile."""
        before_s, self._round_s = self._round_s, self._runtime.boot_s()
        if self._round_s - before_s > max(_SLEPT_S, 10 * self._config.upkeep_s):
            self._awake_since_s = self._round_s
        return self._round_s - self._awake_since_s >= self._config.limits.age_grace_s

    def _trim(self, tx: Transaction, *, by_age: bool) -> int:
        trimmed = trim_some(tx, self._config.limits, is_waiting=not by_age)
        if trimmed.held_for not in (None, self._held_for):
            log.warning(
                "engine.events.held",
                subscription=trimmed.held_for.consumer,
                process=trimmed.held_for.instance,
                reason=f"the log holds more than {self._config.limits.event_retention_rows} events, and this"
                f" one has not seen the oldest; at {self._config.limits.event_rows_max} no more are taken",
            )
        self._held_for = trimmed.held_for
        return trimmed.events

    def close(self) -> None:
        self._lock.close()

    def _schedule(self) -> float:
        # Spread out, so that processes that started together do not meet at each round.
        return self._runtime.monotonic_s() + self._config.upkeep_s * self._runtime.rng.uniform(0.5, 1.5)


def _vacuum_some(tx: Transaction) -> None:
    (free,) = tx.db.execute("PRAGMA freelist_count").fetchone()
    # One page at a time: the driver ends this pragma after its first step, whatever number it is given.
    for _ in range(min(free, _VACUUM_PAGES)):
        tx.db.execute("PRAGMA incremental_vacuum(1)")
