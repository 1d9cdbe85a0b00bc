"""Files that an event names, taken into the run as if a job had brought them.

A user who plays, exports or trains with programs of his own publishes SELFPLAY_COMPLETE, NPZ_EXPORT_COMPLETE
or TRAINING_COMPLETED with the path of the file. The path must lie in a folder that the settings name: an
event must not read any file of the machine. The file is copied, checked as far as that is possible without
its game, sealed under its hash, and noted as work that is done; games are still replayed by the rules before
anybody learns from them. A file is taken in once, however often it is told.

A claim without a file, or with one that cannot be taken in, is refused with the reason, which is kept for a
week, and changes no number. A repeated event is refused once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Claimant, Engine, KeyValue, NewWork
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, Unavailable
from ringrift.events.routed_event import RouterEvent
from ringrift.foreign_files.documents import parse_json
from ringrift.foreign_files.paths import open_regular, read_regular
from ringrift.foreign_files.sample_archives import UNREADABLE, open_samples
from ringrift.held_folder import create_file, make_folders, remove_file
from ringrift.learning.announcing import SOURCE as LOOP
from ringrift.learning.facts import JobIssued
from ringrift.learning.results import OUTSIDE, problem_with
from ringrift.learning.signals_source import RunningLoop
from ringrift.learning.state import ConfigState, OpenJob
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.work.job_orders import (
    SEALED_JOB,
    USER_PROGRAM,
    JobArtifact,
    JobOrder,
    JobReport,
    SealedJob,
)

FOLDER = "intake"  # in the data folder: copies on their way into the blobs
FILE_BYTES_MAX = 4 << 30
CARD_BYTES_MAX = 1 << 20
PRIORITY = 1_000_000  # it is done already, and must not wait behind what is not
LEASE_S = 60.0
COUNT_MAX, YEAR_S = 1_000_000_000, 31_536_000.0
_CHUNK_BYTES = 1 << 20
_KINDS = {"SELFPLAY_COMPLETE": "selfplay", "NPZ_EXPORT_COMPLETE": "export", "TRAINING_COMPLETED": "train"}

log = structlog.get_logger()

REFUSALS = (ConfigError, Corrupt)  # what is raised for a file that cannot be taken in

PREFIX = "learning/refused_claim/"
KEPT_S = 7 * 86_400.0
KEPT_MAX = 200  # a sender that does not stop must not fill the store
SHOWN = 20

# Event: what it claims, and the field that names its file.
CLAIMS: Mapping[str, tuple[str, str]] = {
    "SELFPLAY_COMPLETE": ("games", "db_path"),
    "NPZ_EXPORT_COMPLETE": ("samples", "output_path"),
    "TRAINING_COMPLETED": ("a model", "model_path"),
}


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file that was named, copied to where nobody else writes."""

    real: Path
    path: Path
    digest: str
    size: int


class FileIntake:
    """Takes files into the run of one controller."""

    def __init__(self, loop: RunningLoop, engine: Engine, settings: Settings, runtime: Runtime) -> None:
        self._loop, self._engine, self._runtime = loop, engine, runtime
        self._folders, self._here = settings.intake_folders, settings.data_dir / FOLDER

    async def take_in(self, event: RouterEvent) -> bool:
        """Take in the file that *event* names; False if the run has it. Raises one of `REFUSALS` if not."""
        _, field = CLAIMS[event.event_type]
        named, config = str(event.payload.get(field) or ""), str(event.payload.get("config_key") or "")
        if not named:
            raise ConfigError(f"it names no file ({field})")
        state = self._loop.state(config)
        copy = await asyncio.to_thread(self._copied, named)
        try:
            if copy.digest in state.shards or copy.digest in state.samples or state.player(copy.digest):
                return False
            order, artifacts, fields = await self._read(_KINDS[event.event_type], state, copy, event.payload)
            job, report = self._as_done(state, event, order, artifacts, fields)
            await self._engine.blobs.put(copy.path)
        finally:
            await asyncio.to_thread(remove_file, copy.path)
        await self._note(config, job, report)
        return True

    # --- the file -------------------------------------------------------------------------------------

    def _copied(self, named: str) -> _Copy:
        """Copy what is named, once it is known to lie in one of the folders; a link leads where it leads."""
        real = _real_path(named, self._folders)
        make_folders(self._here)
        target = self._here / self._runtime.new_id()
        try:
            with open_regular(real, follow=False) as source, create_file(target) as file:
                if _real_path(named, self._folders) == real:  # what is open is what was looked at
                    digest, size = _pour(source, file)
                else:
                    digest, size = "", 0
        except OSError as error:
            remove_file(target)
            raise ConfigError(f"{named} cannot be read: {error.strerror}") from None
        if not 0 < size <= FILE_BYTES_MAX:
            remove_file(target)
            raise ConfigError(f"{named} is empty, has more than {FILE_BYTES_MAX} bytes, or changed meanwhile")
        return _Copy(real, target, digest, size)

    async def _read(
        self, kind: str, state: ConfigState, copy: _Copy, told: Mapping[str, Any]
    ) -> tuple[JobOrder, list[JobArtifact], dict[str, Any]]:
        """What the job would have been that brought the file, and what it would have reported."""
        config = state.config
        if kind == "selfplay":
            counts = {"games": _positive(told, "games_generated"), "rows": 0}  # the check counts them
            order = JobOrder(config=config, params={}, purpose=OUTSIDE, program=USER_PROGRAM)
            return order, [_artifact(copy, "shard", counts)], {}
        if kind == "export":
            rows = await asyncio.to_thread(_rows_of, copy.path)
            counts = {"games": _count(told, "games_exported"), "rows": rows}
            order = JobOrder(config=config, params={"rows_generated": state.rows + rows}, purpose=OUTSIDE)
            return order, [_artifact(copy, "samples", counts)], {}
        samples = state.newest_samples
        if samples is None:
            raise ConfigError("no samples of the config are known; tell them first with NPZ_EXPORT_COMPLETE")
        card = await asyncio.to_thread(_card_of, copy, self._folders)
        made = JobArtifact(
            name=copy.real.with_suffix(".json").name,
            kind="card",
            digest=await self._engine.blobs.put_bytes(card),
            size_bytes=len(card),
        )
        order = JobOrder(
            config=config, params={"batch": 1}, inputs={"samples.npz": samples.digest}, purpose=OUTSIDE
        )
        fields = {"steps": _count(told, "samples_trained"), "epochs": told.get("epochs")}
        losses = {"train": told.get("train_loss"), "best_held": told.get("val_loss")}
        known = {name: value for name, value in {**fields, **losses}.items() if value is not None}
        return order, [_artifact(copy, "model", {}), made], known

    # --- the facts ------------------------------------------------------------------------------------

    def _as_done(
        self,
        state: ConfigState,
        event: RouterEvent,
        order: JobOrder,
        artifacts: list[JobArtifact],
        fields: dict[str, Any],
    ) -> tuple[OpenJob, JobReport]:
        """The job and its report. Raises `ConfigError` if the report cannot be an answer to it."""
        kind, now_s = _KINDS[event.event_type], self._runtime.now_s()
        job_id = f"{OUTSIDE}-{kind}-{artifacts[0].digest[:16]}"
        took_s = _seconds(event.payload, "duration_seconds")
        report = JobReport(
            status="done",
            worker=OUTSIDE,
            node=str(event.payload.get("node_id") or self._runtime.hostname),
            started_s=now_s - took_s,
            wall_s=took_s,
            cpu_s=0.0,
            artifacts=tuple(artifacts),
            fields=fields,
        )
        reason = f"told by {event.source or 'somebody'} with {event.event_type}"
        job = OpenJob(job_id, kind, order, 0, reason, now_s)
        if problem := problem_with(state, job, report):
            raise ConfigError(problem)
        return job, report

    async def _note(self, config: str, job: OpenJob, report: JobReport) -> None:
        """Make it facts. After a crash in between the event comes again, or the next start goes on."""
        await self._complete(job, await self._sealed(job, report))
        issued = JobIssued(
            at_s=job.issued_s,
            job_id=job.job_id,
            kind=job.kind,
            order=job.order,
            priority=job.priority,
            reason=job.reason,
        )
        await self._loop.take_in_done(config, issued)
        log.info("pipeline.taken_in", config=config, job=job.job_id, digest=report.artifacts[0].digest)

    async def _sealed(self, job: OpenJob, report: JobReport) -> JobReport:
        """With a record of the job among its files, as every job has one, for a rebuild of the facts."""
        sealed = SealedJob(
            item_id=job.job_id, kind=job.kind, order=job.order, report=report, ended_s=job.issued_s
        )
        content = msgspec.json.encode(sealed)
        digest = await self._engine.blobs.put_bytes(content)
        made = JobArtifact(
            name=f"{job.job_id}.job.json", kind=SEALED_JOB, digest=digest, size_bytes=len(content)
        )
        return msgspec.structs.replace(report, artifacts=(*report.artifacts, made))

    async def _complete(self, job: OpenJob, report: JobReport) -> None:
        """Put it into the queue as work that is done, where everybody looks who asks what jobs brought."""
        queue, only = self._engine.queue, f"{OUTSIDE}:{job.job_id}"
        item = NewWork(
            id=job.job_id,
            kind=job.kind,
            payload=job.order.as_payload(),
            priority=PRIORITY,
            requires=frozenset({only}),
            idempotency_key=job.job_id,
            attempts_max=1,
        )
        await queue.add([item])
        claimant = Claimant(worker=OUTSIDE, capabilities=frozenset({only}), kinds=frozenset({job.kind}))
        for claim in await queue.claim(claimant, lease_s=LEASE_S):
            if claim.id == job.job_id:
                await queue.complete(job.job_id, token=claim.token, result=report.as_result())
                return
            await queue.release(claim.id, token=claim.token)
        known = await queue.get(job.job_id)
        if known is None or known.result is None:
            raise Unavailable(f"{job.job_id} could not be noted as done", retry_after_s=LEASE_S)


def _pour(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copy up to a little more than may be; return the hash and the size."""
    found, size = hashlib.sha256(), 0
    while size <= FILE_BYTES_MAX and (chunk := source.read(_CHUNK_BYTES)):
        size += len(chunk)
        found.update(chunk)
        target.write(chunk)
    return found.hexdigest(), size


def _artifact(copy: _Copy, kind: str, counts: dict[str, Any]) -> JobArtifact:
    return JobArtifact(
        name=copy.real.name, kind=kind, digest=copy.digest, size_bytes=copy.size, counts=counts
    )


def _real_path(named: str, folders: Sequence[Path]) -> Path:
    """Where *named* really lies, which must be in one of *folders*."""
    if not folders:
        raise ConfigError(
            f"{named} is not taken in: no folder is named for it; set RINGRIFT_INTAKE_FOLDERS to those that "
            "files of events may come from"
        )
    try:
        real = Path(named).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ConfigError(f"there is no file {named}") from None
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        shown = ", ".join(str(folder) for folder in folders)
        raise ConfigError(f"{named} does not lie in a folder of RINGRIFT_INTAKE_FOLDERS ({shown})")
    return real


def _positive(told: Mapping[str, Any], field: str) -> int:
    number = told.get(field)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= COUNT_MAX:
        raise ConfigError(f"{field} is {number!r}; it must be a whole number from 1 to {COUNT_MAX:,}")
    return number


def _count(told: Mapping[str, Any], field: str) -> int:
    """A number that may be left out."""
    return _positive(told, field) if told.get(field) else 0


def _seconds(told: Mapping[str, Any], field: str) -> float:
    found = told.get(field) or 0.0
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= YEAR_S:
        raise ConfigError(f"{field} is {found!r}; it must be a number of seconds from 0 to a year")
    return float(found)


def _rows_of(path: Path) -> int:
    """How many rows a file of samples holds, by itself and not by what was said of it."""
    try:
        with open_samples(path) as archive:
            if archive.faults:
                name, fault = next(iter(archive.faults.items()))
                raise ConfigError(f"{name} of the samples is {fault}")
            values = archive.arrays.get("values")
            if values is None or not values.shape or not values.shape[0]:
                raise ConfigError("the file of samples holds no rows (values)")
            return values.shape[0]
    except UNREADABLE as error:
        raise ConfigError(f"the file is no file of samples: {error}") from None


def _card_of(copy: _Copy, folders: Sequence[Path]) -> bytes:
    """The card beside a model, which must be of this very file."""
    beside = copy.real.with_suffix(".json")
    try:
        content = read_regular(_real_path(str(beside), folders), bytes_max=CARD_BYTES_MAX, follow=False)
        card = parse_json(content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the card {beside.name} of the model cannot be read: {error}") from None
    if not isinstance(card, dict) or card.get("sha256") != copy.digest:
        raise ConfigError(f"the card {beside.name} is of another file: its sha256 is not {copy.digest}")
    return content


# --- refusals ---------------------------------------------------------------------------------------------


class RefusedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim that was not taken in."""

    event_type: str
    event_id: str
    source: str
    config_key: str
    at_s: float
    reason: str


def is_claim(event: RouterEvent) -> bool:
    """Whether somebody other than the loop says that he brought something."""
    told_by_other = event.event_type in CLAIMS and event.source != LOOP
    return told_by_other and event.payload.get("success") is not False


def refused(event: RouterEvent, why: str) -> RefusedClaim:
    what, _ = CLAIMS[event.event_type]
    return RefusedClaim(
        event_type=event.event_type,
        event_id=event.event_id,
        source=event.source,
        config_key=str(event.payload.get("config_key") or ""),
        at_s=event.timestamp,
        reason=f"it claims {what}, and {why}",
    )


async def keep_refusal(claim: RefusedClaim) -> None:
    """Write it to the log, and to the store if there is one and it has room."""
    log.warning("pipeline.claim_refused", **msgspec.to_builtins(claim))
    engine = await existing_engine()
    if engine is None or len(await engine.kv.entries(PREFIX)) >= KEPT_MAX:
        return
    try:
        await engine.kv.create(PREFIX + claim.event_id, msgspec.json.encode(claim), ttl_s=KEPT_S)
    except AlreadyExists:
        return  # another process heard it too


async def refused_claims(kv: KeyValue) -> list[RefusedClaim]:
    """The newest first."""
    found = [decode_entry(entry, RefusedClaim) for entry in await kv.entries(PREFIX)]
    return sorted(found, key=lambda claim: -claim.at_s)[:SHOWN]
