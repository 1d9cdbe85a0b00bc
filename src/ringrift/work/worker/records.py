"""What a worker is, and what workers and their jobs say of themselves for everybody to read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Entry, KeyValue
from ringrift.engine.records import read_record
from ringrift.errors import ConfigError
from ringrift.work.job.protocol import number

# What a worker is: its name, its slots, what it can do and how patient it is.


LEASE_S = 30.0
NVIDIA = Path("/proc/driver/nvidia/gpus")
# Whatever PyTorch computes on through CUDA: NVIDIA, also in containers and on Tegra, ROCm, WSL2.
GPU_DEVICES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker. Units as the names say."""

    name: str
    node: str
    slots: int = 1
    kinds: frozenset[str] | None = None  # None: any
    # Kinds for which no game yields: another worker of this machine does them beside the slots.
    left_to_others: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset({"cpu"})
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    gpus: int = 0
    lease_s: float = LEASE_S
    claim_wait_s: float = 60.0
    pause_s: float = 1.0  # after something went wrong that is not the job's fault

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "._-" for c in self.name):
            raise ConfigError(f"a worker's name has letters, digits, '.', '_' and '-', not {self.name!r}")
        if not 1 <= self.slots <= 1024:
            raise ConfigError(f"slots is {self.slots}; it must be 1 to 1024")
        if self.lease_s < 1 or self.claim_wait_s <= 0 or self.pause_s <= 0:
            raise ConfigError("lease_s must be at least 1, claim_wait_s and pause_s above 0")

    def node_seconds(self, *, cpu_s: float, gpu_s: float) -> float:
        """For how long so much would take a whole node of this kind, whichever it has least of."""
        of_gpus = gpu_s / self.gpus if self.gpus else 0.0
        return max(cpu_s / self.cpus, of_gpus)

    @property
    def renew_s(self) -> float:
        """A third of the lease: two renewals may fail before it is lost."""
        return self.lease_s / 3


def visible_gpus() -> int:
    """How many GPUs jobs of this process can see, without loading a library for it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip() not in ("", "-1")])
    return len(list(NVIDIA.iterdir())) if NVIDIA.is_dir() else 0


def has_gpu_in_reach() -> bool:
    """Whether jobs could compute on a GPU: there is one, and the environment does not hide it from them."""
    return may_compute_on_gpu() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def may_compute_on_gpu() -> bool:
    """Whether there is a GPU at all, also one that is not counted or was hidden from jobs."""
    return any(glob.glob(pattern) for pattern in GPU_DEVICES)


def own_capabilities(gpus: int) -> frozenset[str]:
    return frozenset({"cpu", "gpu"}) if gpus else frozenset({"cpu"})


# What workers and their jobs say of themselves in the key-value port, for everybody to read.
#
# Each record lives a little longer than the time between two renewals, so that what a killed worker said is
# gone soon after it.


WORKERS = "workers/"
RUNNING = "jobs/running/"
SET_ASIDE = "set_aside/"
WORKER_TTL_S = 20.0
WORKER_RENEW_S = 5.0
RUNNING_TTL_S = 30.0
RUNNING_RENEW_S = 10.0
TELL_S = 1.0  # no record is written more often
PROGRESS_S = 2.0  # nor that of a running job; the status of the run is as old


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


def loss_so_far(extra: Mapping[str, Any], name: str) -> float | None:
    """The whole loss of a training, on its own rows or held-out ones; a foreign trainer says just `loss`."""
    parts = [number(extra.get(f"{name}_{part}")) for part in ("policy", "value")]
    known = [float(part) for part in parts if part is not None]
    if known:
        return sum(known)
    said = number(extra.get("loss")) if name == "train" else None
    return None if said is None else float(said)


def epochs_so_far(extra: Mapping[str, Any], done: float) -> int:
    return int(number(extra.get("epoch")) or done)


def worker_key(name: str) -> str:
    return WORKERS + name


def set_aside_key(name: str) -> str:
    return SET_ASIDE + name


async def why_set_aside(kv: KeyValue, name: str) -> str:
    """Why the worker *name* is to claim nothing; empty if it may."""
    aside = await read_record(kv, set_aside_key(name), SetAsideRecord)
    return "" if aside is None else aside.reason


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
