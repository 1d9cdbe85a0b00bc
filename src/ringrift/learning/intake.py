"""Files that an event names, taken into the run as if a job had brought them.

A user who plays, exports, trains or evaluates with programs of his own publishes SELFPLAY_COMPLETE,
NPZ_EXPORT_COMPLETE, TRAINING_COMPLETED or EVALUATION_COMPLETED with the path of the file. The path must lie
in a folder that the settings name: an event must not read any file of the machine. The file is copied,
checked as far as that is possible without its game, sealed under its hash, and noted as work that is done;
games are still replayed by the rules before anybody learns from them, and results of matches are evidence for
the same test as those of our own jobs. A file is taken in once, however often it is told.

A claim without a file, or with one that cannot be taken in, is refused with the reason, which is kept for a
week, and changes no number. A repeated event is refused once. What is told while its config is paused, or
just before what it builds on, waits in the store, and is taken in by the loop when its time has come.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Claimant, Engine, KeyValue, NewWork, WorkState
from ringrift.engine.records import KvRecords, read_records, write_record
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.files import create_file, make_folders, remove_file
from ringrift.foreign_files.content_kinds import VALUES, ContentKind, content_kind
from ringrift.foreign_files.documents import parse_json, printable
from ringrift.foreign_files.paths import open_offered, read_open
from ringrift.foreign_files.sample_archives import UNREADABLE, open_samples
from ringrift.learning.announcements import SOURCE as LOOP
from ringrift.learning.facts.facts import JobIssued
from ringrift.learning.facts.results import (
    HELD_BY,
    OUTSIDE,
    SLOT_FIELD,
    WEIGHTS_SUFFIX,
    WRITTEN,
    OfferedResults,
    player_text,
    problem_with,
    read_fields,
    samples_without_games,
)
from ringrift.learning.facts.state import ConfigState, OpenJob
from ringrift.learning.judging.promotion import PROMOTION, RANDOM
from ringrift.learning.plan.evaluation import OPEN, untrained_player
from ringrift.learning.plan.orders import NAME_DIGITS, RATING
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.requests import Pauses, ReadPauses
from ringrift.learning.situation import RunningLoop
from ringrift.process import process_scope
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.work.job.protocol import SEALED_JOB, USER_PROGRAM, JobArtifact, JobOrder, JobReport, SealedJob
from ringrift.work.shares import board_and_players

FOLDER = "intake"  # in the data folder: copies on their way into the blobs
FILE_BYTES_MAX = 4 << 30
CARD_BYTES_MAX = 1 << 20
PRIORITY = 1_000_000  # it is done already, and must not wait behind what is not
LEASE_S = 60.0
ORDER_S = 30.0  # so long a file waits for the one that it builds on
COUNT_MAX, YEAR_S = 1_000_000_000, 31_536_000.0
JOB_ID_CHARS_MAX = 200
_CHUNK_BYTES = 1 << 20
RESULTS_BYTES_MAX = 16 << 20
_KINDS = {
    "SELFPLAY_COMPLETE": "selfplay",
    "NPZ_EXPORT_COMPLETE": "export",
    "TRAINING_COMPLETED": "train",
    "EVALUATION_COMPLETED": "evaluate",
}

# What each kind of file is by its content, and the job that reads it next. A program of the user's own that
# does this job may have a form of its own for it, as long as it is not one that stands for something else.
_CONTENTS: Mapping[str, tuple[ContentKind, str]] = {
    "selfplay": (ContentKind.GAMES, "validate"),
    "export": (ContentKind.SAMPLES, ""),
    "train": (ContentKind.WEIGHTS, "evaluate"),
}
_TELLING = frozenset(content for content, _ in _CONTENTS.values())

log = structlog.get_logger()

REFUSALS = (ConfigError, Corrupt)  # what is raised for a file that cannot be taken in

WAITING = "learning/waiting_claim/"
WAITING_MAX = 200
PREFIX = "learning/refused_claim/"
KEPT_S = 7 * 86_400.0
KEPT_MAX = 200  # a sender that does not stop must not fill the store
SHOWN = 20

# Event: what it claims, and the field that names its file.
CLAIMS: Mapping[str, tuple[str, str]] = {
    "SELFPLAY_COMPLETE": ("games", "db_path"),
    "NPZ_EXPORT_COMPLETE": ("samples", "output_path"),
    "TRAINING_COMPLETED": ("a model", "model_path"),
    "EVALUATION_COMPLETED": ("results of games", "results_path"),
}


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file that was named, copied to where nobody else writes."""

    real: Path
    path: Path
    digest: str
    size: int
    written_s: float


class MustWait(Unavailable):
    """The file cannot be taken in now, for no fault of its own."""


class _TooEarly(ConfigError):
    """What it builds on is not known; events of two types may overtake each other on their way here."""


class _Turn:
    """One file at a time becomes facts: the same one may be told again while it is taken in."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()


class FileIntake:
    """Takes files into the run of one controller."""

    def __init__(
        self,
        loop: RunningLoop,
        engine: Engine,
        settings: Settings,
        runtime: Runtime,
        *,
        wake: Callable[[RouterEvent], None],
    ) -> None:
        """*wake* is called when a file has become facts, which the loop should look at."""
        self._loop, self._engine, self._runtime, self._wake = loop, engine, runtime, wake
        self._folders, self._here = settings.intake_folders, settings.data_dir / FOLDER

    async def hear(self, event: RouterEvent) -> None:
        """Take in the file that *event* names, or keep it for later. Raises one of `REFUSALS` if not."""
        try:
            await self.take_in(event)
        except MustWait as why:
            await keep_waiting(self._engine.kv, event, str(why.what))

    async def take_waiting(self) -> None:
        """Take in what was told at another time and may be taken in now."""
        kv = self._engine.kv
        entries = await kv.entries(WAITING)
        pauses = await Pauses(kv).read() if entries else ReadPauses()
        claims = [(entry, decode_entry(entry, WaitingClaim)) for entry in entries]
        for entry, claim in sorted(claims, key=lambda each: each[1].at_s):
            event = claim.as_event()
            if pauses.of(str(event.payload.get("config_key") or "")) is not None:
                continue
            try:
                await self.take_in(event)
            except MustWait:
                continue
            except REFUSALS as error:
                await keep_refusal(refused(event, str(error)))
            await kv.delete(entry.key, revision=entry.revision)

    async def take_in(self, event: RouterEvent) -> bool:
        """Take in the file that *event* names; False if the run has it.

        Raises one of `REFUSALS` if it cannot be taken in, and `MustWait` if not yet.
        """
        _, field = CLAIMS[event.event_type]
        named, config = str(event.payload.get(field) or ""), str(event.payload.get("config_key") or "")
        if not named:
            raise ConfigError(f"it names no file ({field})")
        state = self._loop.state(config)
        paused = (await Pauses(self._engine.kv).read()).why_paused(config)
        if paused is not None:
            raise MustWait(f"{config} is paused ({paused})", retry_after_s=LEASE_S)
        copy = await asyncio.to_thread(self._copied, named)
        try:
            async with process_scope().get(_Turn, _Turn).lock:
                return await self._noted(state, copy, event)
        except _TooEarly as why:
            if self._runtime.now_s() - event.timestamp >= ORDER_S:
                raise
            raise MustWait(str(why), retry_after_s=ORDER_S) from None
        finally:
            await asyncio.to_thread(remove_file, copy.path)

    async def _noted(self, state: ConfigState, copy: _Copy, event: RouterEvent) -> bool:
        if known := _known_as(state, copy.digest):
            if known == event.event_type:
                return False
            raise ConfigError(f"{copy.real.name} is {CLAIMS[known][0]}, which the run has")
        kind = _KINDS[event.event_type]
        first_id = _first_id(kind, copy.digest)
        await asyncio.to_thread(_check_content, kind, copy, self._loop.rules.own_programs)
        order, artifacts, fields = await self._read(kind, state, copy, event.payload)
        job_id = await self._free_id(first_id)
        reason = f"told by {event.source or 'somebody'} with {event.event_type}"
        job = OpenJob(job_id, kind, order, 0, reason, self._runtime.now_s())
        report = self._report(state, event.payload, job, artifacts, fields)
        await self._engine.blobs.put(copy.path)
        await self._note(state.config, job, report)
        self._wake(event)
        return True

    # --- the file -------------------------------------------------------------------------------------

    def _copied(self, named: str) -> _Copy:
        """Copy what is named, once it is known to lie in one of the folders; a link leads where it leads."""
        make_folders(self._here)
        target = self._here / self._runtime.new_id()
        try:
            with open_offered(Path(named), self._folders) as (source, real), create_file(target) as file:
                digest, size = _pour(source, file)
                written_s = os.fstat(source.fileno()).st_mtime
        except FileNotFoundError:
            remove_file(target)
            raise ConfigError(f"there is no file {named}") from None
        except OSError as error:
            remove_file(target)
            raise ConfigError(f"{named} cannot be read: {error.strerror}") from None
        if not 0 < size <= FILE_BYTES_MAX:
            remove_file(target)
            raise ConfigError(f"{named} is empty, or has more than {FILE_BYTES_MAX} bytes")
        return _Copy(real, target, digest, size, written_s)

    async def _read(
        self, kind: str, state: ConfigState, copy: _Copy, payload: Mapping[str, Any]
    ) -> tuple[JobOrder, list[JobArtifact], dict[str, Any]]:
        """What the job would have been that brought the file, and what it would have reported."""
        config = state.config
        if kind == "selfplay":
            counts = {"games": _positive(payload, "games_generated"), "rows": 0}  # the check counts them
            # A file of samples does not name its games: what is left to go by is their number, and the time.
            held_by = samples_without_games(state, counts["games"], written_s=copy.written_s)
            params = {} if held_by is None else {HELD_BY: held_by.digest}
            order = JobOrder(config=config, params=params, purpose=OUTSIDE, program=USER_PROGRAM)
            return order, [_artifact(copy, "shard", counts)], {}
        if kind == "export":
            rows = await asyncio.to_thread(_rows_of, copy.path)
            counts = {"games": _count(payload, "games_exported"), "rows": rows}
            rows_then = {"rows_generated": state.rows + rows, WRITTEN: copy.written_s}
            order = JobOrder(config=config, params=rows_then, purpose=OUTSIDE)
            return order, [_artifact(copy, "samples", counts)], {}
        if kind == "evaluate":
            results = await asyncio.to_thread(_results_of, copy)
            order, fields = _evaluation(state, self._loop.rules, results, payload)
            counts = {"games": sum(match.games for match in results.matches)}
            return order, [_artifact(copy, "evaluation", counts)], fields
        samples = state.newest_samples
        if samples is None:
            raise _TooEarly("no samples of the config are known; tell them first with NPZ_EXPORT_COMPLETE")
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
        fields = {"steps": _count(payload, "samples_trained"), "epochs": payload.get("epochs")}
        losses = {"train": payload.get("train_loss"), "best_held": payload.get("val_loss")}
        # Who tells of a training by its slot has told its end there, too: it must not count twice.
        slot = {SLOT_FIELD: str(payload.get("job_id") or "")[:JOB_ID_CHARS_MAX] or None}
        known = {name: value for name, value in {**fields, **losses, **slot}.items() if value is not None}
        return order, [_artifact(copy, "model", {}), made], known

    # --- the facts ------------------------------------------------------------------------------------

    def _report(
        self,
        state: ConfigState,
        payload: Mapping[str, Any],
        job: OpenJob,
        artifacts: list[JobArtifact],
        fields: dict[str, Any],
    ) -> JobReport:
        """What the job would have reported. Raises `ConfigError` if it cannot be an answer to it."""
        took_s = _seconds(payload, "duration_seconds")
        report = JobReport(
            status="done",
            worker=OUTSIDE,
            node=str(payload.get("node_id") or self._runtime.hostname),
            started_s=job.issued_s - took_s,
            wall_s=took_s,
            cpu_s=0.0,
            artifacts=tuple(artifacts),
            fields=fields,
        )
        if problem := problem_with(state, job, report):
            raise ConfigError(problem)
        return report

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

    async def _free_id(self, first: str) -> str:
        """An id for the job: *first*, unless somebody cancelled that one, which nothing can take back."""
        job_id, number = first, 1
        while (known := await self._engine.queue.get(job_id)) and known.state is WorkState.CANCELLED:
            number += 1
            job_id = f"{first}-{number}"
        return job_id

    async def _complete(self, job: OpenJob, report: JobReport) -> None:
        """Put it into the queue as work that is done, where everybody looks who asks what jobs brought."""
        queue, only = self._engine.queue, f"{OUTSIDE}:{job.job_id}"
        item = NewWork(
            id=job.job_id,
            kind=job.kind,
            payload=job.order.as_payload(),
            priority=PRIORITY,
            requires=frozenset({only}),
            group=job.order.config,
            idempotency_key=job.job_id,
            attempts_max=1,
        )
        await queue.add([item])
        known = await queue.get(job.job_id)
        if known is not None and known.state is WorkState.DEAD:
            await queue.revive(job.job_id)  # whoever told it before died on the way, or met what is over now
        claimant = Claimant(worker=OUTSIDE, capabilities=frozenset({only}), kinds=frozenset({job.kind}))
        for claim in await queue.claim(claimant, lease_s=LEASE_S):
            if claim.id == job.job_id:
                await queue.complete(job.job_id, token=claim.token, result=report.as_result())
                return
            await queue.release(claim.id, token=claim.token)
        known = await queue.get(job.job_id)
        if known is None or known.result is None:
            # It was paused just now, or another process holds it, which may have died since.
            raise MustWait(f"{job.job_id} could not be noted as done", retry_after_s=LEASE_S)


def _first_id(kind: str, digest: str) -> str:
    return f"{OUTSIDE}-{kind}-{digest[:16]}"


def _known_as(state: ConfigState, digest: str) -> str:
    """The event that would tell of the file as what the run has it; empty if the run has it not."""
    # Samples of a user stand for their games, too, so they come first.
    if digest in state.samples:
        return "NPZ_EXPORT_COMPLETE"
    if digest in state.shards:
        return "SELFPLAY_COMPLETE"
    if state.player(digest):
        return "TRAINING_COMPLETED"
    # Results leave no file in the state: the matches themselves say which file they came in.
    first_id = _first_id("evaluate", digest)
    return "EVALUATION_COMPLETED" if any(each.job_id.startswith(first_id) for each in state.matches) else ""


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


def _check_content(kind: str, copy: _Copy, own_programs: tuple[str, ...]) -> None:
    """Raise `ConfigError` if the file is by its content something else than *kind* brings."""
    if kind not in _CONTENTS:
        return  # a document: reading it is the check
    right, reader = _CONTENTS[kind]
    found = content_kind(copy.path)
    if found is right or (found not in _TELLING and (not reader or reader in own_programs)):
        return
    raise ConfigError(f"{copy.real.name} is {found.value}, not {right.value}")


def _positive(payload: Mapping[str, Any], field: str) -> int:
    number = payload.get(field)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= COUNT_MAX:
        raise ConfigError(f"{field} is {number!r}; it must be a whole number from 1 to {COUNT_MAX:,}")
    return number


def _count(payload: Mapping[str, Any], field: str) -> int:
    """A number that may be left out."""
    return _positive(payload, field) if payload.get(field) else 0


def _seconds(payload: Mapping[str, Any], field: str) -> float:
    found = payload.get(field) or 0.0
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
            values = archive.arrays.get(VALUES)
            if values is None or not values.shape or not values.shape[0]:
                raise ConfigError(f"the file of samples holds no rows ({VALUES})")
            return values.shape[0]
    except UNREADABLE as error:
        raise ConfigError(f"the file is no file of samples: {error}") from None


def _card_of(copy: _Copy, folders: tuple[Path, ...]) -> bytes:
    """The card beside a model, which must be of this very file."""
    beside = copy.real.with_suffix(".json")
    try:
        with open_offered(beside, folders) as (file, real):
            content = read_open(file, real, bytes_max=CARD_BYTES_MAX)
        card = parse_json(content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the card {beside.name} of the model cannot be read: {error}") from None
    if not isinstance(card, dict) or card.get("sha256") != copy.digest:
        raise ConfigError(f"the card {beside.name} is of another file: its sha256 is not {copy.digest}")
    return content


def _results_of(copy: _Copy) -> OfferedResults:
    """What a file says of matches, in the form in which the job `evaluate` seals it."""
    try:
        with copy.path.open("rb") as file:
            content = parse_json(read_open(file, copy.real, bytes_max=RESULTS_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{copy.real.name} is no file of results: {error}") from None
    return read_fields(content, OfferedResults, copy.real.name)


def _evaluation(
    state: ConfigState, rules: LearningRules, results: OfferedResults, payload: Mapping[str, Any]
) -> tuple[JobOrder, dict[str, Any]]:
    """The order that *results* would have answered, and the answer."""
    if results.config != state.config:
        raise ConfigError(f"its games are of {results.config}, not of {state.config}")
    model = state.models.get(results.model_sha256)
    if model is None:
        raise _TooEarly(
            f"the run knows no model {results.model_sha256[:12]}; tell it first with TRAINING_COMPLETED"
        )
    if payload.get("model_id") in state.models and payload["model_id"] != model.digest:
        raise ConfigError(f"its games are of model {model.digest[:12]}, not of {payload['model_id'][:12]}")
    players = board_and_players(state.config)[1]
    if wrong := [each.players for each in results.matches if each.players != players]:
        raise ConfigError(f"games of {wrong[0]} players are no games of {state.config}")
    simulations = rules.evaluation_simulations if results.simulations is None else results.simulations
    files = {f"candidate{WEIGHTS_SUFFIX}": model.digest}
    matches, gates = [], []
    for each in results.matches:
        opponent = _opponent(state, rules, each.opponent, files, simulations)
        purpose = PROMOTION if model.state in OPEN else RATING
        gates.append({"opponent": opponent, "games": each.games, "purpose": purpose})
        matches.append({**msgspec.to_builtins(each), "opponent": opponent})
    params = {"candidate": player_text(f"candidate{WEIGHTS_SUFFIX}", simulations), "gates": gates}
    order = JobOrder(config=state.config, params=params, inputs=files, purpose=OUTSIDE)
    return order, {"matches": matches}


def _opponent(
    state: ConfigState, rules: LearningRules, name: str, files: dict[str, str], simulations: int
) -> str:
    """The player that a file calls *name*, as orders call it; a model is named by its hash, and noted."""
    if name in state.models:
        file = f"opponent-{name[:NAME_DIGITS]}{WEIGHTS_SUFFIX}"
        files[file] = name
        return player_text(file, simulations)
    untrained = untrained_player(rules)
    if name in ("untrained", untrained):
        return untrained
    known = dict.fromkeys((RANDOM, *rules.rating_opponents))
    if name in known:
        return name
    raise ConfigError(
        f"its opponent {printable(name, 80)!r} is not known; there are {', '.join(known)}, untrained, "
        "and the models of the run, each by the sha256 of its weights"
    )


# --- what waits -------------------------------------------------------------------------------------------


class WaitingClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim whose file is taken in later."""

    event_type: str
    event_id: str
    source: str
    at_s: float
    payload: dict[str, Any]
    reason: str

    def as_event(self) -> RouterEvent:
        return RouterEvent(
            self.event_type,
            self.payload,
            timestamp=self.at_s,
            source=self.source,
            event_id=self.event_id,
        )


async def keep_waiting(kv: KeyValue, event: RouterEvent, why: str) -> None:
    """Keep it in the store. Raises `ConfigError` if too many wait."""
    if len(await kv.entries(WAITING)) >= WAITING_MAX:
        raise ConfigError(f"{why}, and {WAITING_MAX} files wait already; tell it again later")
    claim = WaitingClaim(
        event_type=event.event_type,
        event_id=event.event_id,
        source=event.source,
        at_s=event.timestamp,
        payload=event.payload,
        reason=why,
    )
    await write_record(kv, WAITING + event.event_id, claim)
    log.info("pipeline.claim_waits", event_type=event.event_type, source=event.source, reason=why)


async def waiting_claims(kv: KeyValue) -> list[WaitingClaim]:
    """The oldest first."""
    found = await read_records(kv, WAITING, WaitingClaim)
    return sorted(found, key=lambda claim: claim.at_s)


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
    from_other = event.event_type in CLAIMS and event.source != LOOP
    return from_other and event.payload.get("success") is not False


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
    # Another process may have heard it, too.
    await KvRecords(engine.kv, PREFIX, RefusedClaim).create(claim.event_id, claim, ttl_s=KEPT_S)


async def refused_claims(kv: KeyValue) -> list[RefusedClaim]:
    """The newest first."""
    found = await read_records(kv, PREFIX, RefusedClaim)
    return sorted(found, key=lambda claim: -claim.at_s)[:SHOWN]
