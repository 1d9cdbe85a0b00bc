"""What a worker is asked to do, and what it answers: the payload and the result of a work item.

A work item's kind is the kind of the job. Files travel as digests: the worker lays the inputs out in a
folder of the item before it starts the job, and takes the sealed artifacts in when it ended well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ringrift.decoding import convert_to, decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Json
from ringrift.errors import ConfigError

INPUTS = "{inputs}"  # in a parameter: the folder where the inputs lie
SEALED_JOB = "job"  # the kind of an artifact that says what a job was asked and brought
_SEALED_JOB_BEGINS = b'{"sealed":"job",'
_SEALED_JOB_BYTES_MAX = 1 << 20
OUT = "{out}"  # in a parameter: the folder whose files survive a retry
RINGRIFT_PROGRAM, USER_PROGRAM = "ringrift", "user"


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a work item."""

    config: str
    params: dict[str, Any]  # parameters of the job; texts may hold `{inputs}` and `{out}`
    inputs: dict[str, str] = {}  # file name: digest
    timeout_s: float | None = None  # None: from the measured durations of the kind
    memory_mb: int | None = None
    gpu: bool = False
    purpose: str = ""  # what it is for, where a kind serves several: promotion, rating, rollback
    program: str = ""  # whose program plays, of a selfplay order; empty: an older version did not say
    not_by: tuple[str, ...] = ()  # workers that should not do it; the first of them would, if need be

    def as_payload(self) -> Json:
        payload: dict[str, Any] = _with_lists(msgspec.to_builtins(self))
        return payload


class JobArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file that is in the blobs."""

    name: str
    kind: str  # shard, samples, model, card, report, evaluation, …
    digest: str
    size_bytes: int
    counts: dict[str, Any] = {}


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a completed work item."""

    status: str  # as in the job's result line: done, data_refused
    worker: str
    node: str
    started_s: float
    wall_s: float
    cpu_s: float
    start_s: float | None = None  # from the claim to its first game or step; None: it told of none
    gpu_s: float = 0.0  # how long it had a GPU
    node_s: float | None = None  # how long it took a whole node, or would have; None: not known
    machine: str = ""  # the kind, as the worker measured it; empty: it has GPUs, or an older version
    artifacts: tuple[JobArtifact, ...] = ()
    fields: dict[str, Any] = {}  # the other fields of the job's result line

    def as_result(self) -> Json:
        result: dict[str, Any] = _with_lists(msgspec.to_builtins(self))
        return result


def _with_lists(value: Any) -> Any:
    """JSON knows lists only, and the queue refuses what it would give back as something else."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


class SealedJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="sealed", tag="job"):
    """What was asked and what came of it, as a sealed file beside the files that came of it.

    A shard or a model alone does not say which work it belongs to; with these the facts of a run can be made
    again when its database is lost.
    """

    item_id: str
    kind: str
    order: JobOrder
    report: JobReport
    ended_s: float


def read_sealed_job(content: bytes) -> SealedJob | None:
    """None for any other file."""
    if not content.startswith(_SEALED_JOB_BEGINS):
        return None
    try:
        return decode_as(content, SealedJob)
    except UNREADABLE:
        return None


def read_job_record(path: Path) -> SealedJob | None:
    """The same from a file; of any other file only the beginning is read."""
    with path.open("rb") as file:
        begins = file.read(len(_SEALED_JOB_BEGINS))
        if begins != _SEALED_JOB_BEGINS:
            return None
        return read_sealed_job(begins + file.read(_SEALED_JOB_BYTES_MAX))


def read_order(payload: Json) -> JobOrder:
    """Raises `ConfigError` for a payload that is no order."""
    try:
        return convert_to(payload, JobOrder)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the work item is no job order: {error}") from None


def read_report(result: Json) -> JobReport:
    """Raises `ConfigError` for a result that is no report."""
    try:
        return convert_to(result, JobReport)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the result is no job report: {error}") from None
