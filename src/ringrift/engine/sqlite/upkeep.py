"""Upkeep of the database: expiry, retention, vacuum. One process at a time does it, by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.events import forget_old_positions, trim_some
from ringrift.engine.sqlite.kv import drop_old_tombstones, expire_some
from ringrift.engine.sqlite.queue_ops import end_due
from ringrift.engine.sqlite.queue_retention import WorkSweep, drop_empty_lanes
from ringrift.engine.sqlite.writer import Operation, Transaction
from ringrift.runtime import Runtime

_VACUUM_PAGES = 256
_TRIM_STEPS = 50
_RARELY = 60  # rounds between two looks at what changes slowly


class DatabaseUpkeep:
    """Says when upkeep is due and what there is to do; the writer does it."""

    def __init__(self, config: SqliteConfig, runtime: Runtime, sweep_blobs: Callable[[], None]) -> None:
        self._config, self._runtime, self._sweep_blobs = config, runtime, sweep_blobs
        self._work = WorkSweep(config.limits)
        self._rounds = 0
        self._lock = LockFile(config.database.with_name(config.database.name + ".upkeep"))
        self._next_s = self._schedule()

    def wait_s(self) -> float:
        return max(0.0, self._next_s - self._runtime.monotonic_s())

    def operations(self) -> Sequence[Operation[Any]]:
        self._next_s = self._schedule()
        # Whoever comes first keeps the task for its life.
        if not self._lock.try_lock():
            return ()
        self._rounds += 1
        limits = self._config.limits
        steps: list[Operation[Any]] = [end_due, expire_some, self._work.step]
        steps += [lambda tx: trim_some(tx, limits)] * _TRIM_STEPS
        steps += [_vacuum_some]
        if self._rounds % _RARELY == 1:
            steps += [
                lambda tx: forget_old_positions(tx, limits),
                lambda tx: drop_old_tombstones(tx, limits),
                drop_empty_lanes,
            ]
            self._sweep_blobs()
        return steps

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
