"""What workers and their jobs say of themselves in the key-value port, for everybody to read.

Each record lives a little longer than the time between two renewals, so that what a killed worker said is
gone soon after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Entry, KeyValue

WORKERS = "workers/"
RUNNING = "jobs/running/"
SET_ASIDE = "set_aside/"
WORKER_TTL_S = 20.0
WORKER_RENEW_S = 5.0
RUNNING_TTL_S = 30.0
RUNNING_RENEW_S = 10.0
TELL_S = 1.0  # no record is written more often


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that lives: `workers/<name>`."""

    name: str
    node: str
    pid: int
    slots: int
    busy: int
    kinds: tuple[str, ...] | None  # None: any
    capabilities: tuple[str, ...]
    cpus: int
    gpus: int
    memory_mb: int  # of the machine
    memory_free_mb: int
    load: float  # runnable processes over the last minute
    started_s: float
    at_s: float
    jobs: tuple[str, ...] = ()
    done: int = 0
    failed: int = 0
    stopping: bool = False
    set_aside: str = ""  # why it may not claim anything

    @property
    def free(self) -> int:
        return 0 if self.stopping or self.set_aside else max(self.slots - self.busy, 0)


class SetAsideRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is to claim nothing: `set_aside/<name>`. Kept by the control process."""

    worker: str
    reason: str
    since_s: float
    until_s: float


class RunningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job under way: `jobs/running/<item id>`."""

    job_id: str
    kind: str
    config: str
    worker: str
    node: str
    pid: int | None
    attempt: int
    stage: str
    done: float
    total: float | None
    rate: float
    eta_s: float | None
    started_s: float
    at_s: float
    elapsed_s: float
    cpu_s: float
    memory_mb: float
    line: str  # the newest position in words
    extra: dict[str, Any] = {}  # what the stage adds: moves, losses, …


def worker_key(name: str) -> str:
    return WORKERS + name


def set_aside_key(name: str) -> str:
    return SET_ASIDE + name


async def why_set_aside(kv: KeyValue, name: str) -> str:
    """Why the worker *name* is to claim nothing; empty if it may."""
    entry = await kv.get(set_aside_key(name))
    return "" if entry is None else decode_entry(entry, SetAsideRecord).reason


def own_capability(name: str) -> str:
    """What only the worker *name* has: work that requires it is for that worker alone."""
    return f"worker:{name}"


def running_key(item_id: str) -> str:
    return RUNNING + item_id


async def live_workers(kv: KeyValue) -> list[WorkerRecord]:
    """Every worker that lives, by name."""
    return workers_in(await kv.entries(WORKERS))


def workers_in(entries: Iterable[Entry]) -> list[WorkerRecord]:
    """The same out of what was read together with other things."""
    return [decode_entry(entry, WorkerRecord) for entry in entries if entry.key.startswith(WORKERS)]


async def running_jobs(kv: KeyValue) -> list[RunningRecord]:
    """Every job under way, by item."""
    return jobs_in(await kv.entries(RUNNING))


def jobs_in(entries: Iterable[Entry]) -> list[RunningRecord]:
    """The same out of what was read together with other things."""
    return [decode_entry(entry, RunningRecord) for entry in entries if entry.key.startswith(RUNNING)]
