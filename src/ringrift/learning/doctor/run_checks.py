"""Checks of the run itself and of what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.files import check_whole
from ringrift.errors import Corrupt
from ringrift.learning.doctor.findings import Ailment, Finding, Level, Ward
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.store_check import check_store
from ringrift.learning.plan.evaluation import open_candidates
from ringrift.learning.plan.snapshot import EXTRA_STAGES, STAGES
from ringrift.learning.plan.stages import breaker_gate, slot_of
from ringrift.settings import Settings
from ringrift.work.job.folder import role_of

# Workers, disk, clock, breakers, and stages that wait too long for their turn.


GIB = 2**30
DISK_PROBLEM_BYTES, DISK_WARNING_BYTES = 1 * GIB, 5 * GIB
DISK_PROBLEM_SHARE, DISK_WARNING_SHARE = 0.02, 0.05
CLOCK_JUMP_S = 30.0
WORKER_IDLE_S = 1800.0
WAITS_WARNING_S, WAITS_PROBLEM_S = 1200.0, 3600.0
JOBS_LONG = 10.0  # a stage is late after so many times the length of one self-play job


def breakers(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    for stage in (*STAGES, *EXTRA_STAGES):
        failures = state.failures.get(stage)
        if failures is None or not failures.in_a_row:
            continue
        gate = breaker_gate(stage, failures, ward.rules, now_s=ward.now_s)
        grave = failures.in_a_row >= ward.rules.breaker_failures
        rests = "" if gate.until_s is None else f"; it rests for {gate.until_s - ward.now_s:.0f} s more"
        times = "once" if failures.in_a_row == 1 else f"{failures.in_a_row} times in a row"
        yield Ailment(
            level=Level.PROBLEM if grave else Level.NOTICE,
            text=f"{stage} of {state.config} failed {times}: {failures.error}{rests}",
            advice="`ringrift queue dead` shows the items; it tries again by itself.",
            evidence={"stage": stage, "in_a_row": failures.in_a_row},
        )


def files(ward: Ward) -> Iterator[Ailment]:
    """Files that work needs and that were found damaged."""
    for found in ward.damaged:
        yield Ailment(
            level=Level.PROBLEM,
            text=f"{role_of(found.name)} ({found.digest}) on {found.node}, for {found.item_id}, is damaged",
            advice="It is set aside. Another copy is brought if there is one; else `ringrift data restore`.",
            evidence={"digest": found.digest, "node": found.node},
        )


def run_paused(ward: Ward) -> Iterator[Ailment]:
    """What somebody stopped on purpose is no fault, but whoever asks why nothing happens has to see it."""
    if ward.run_paused is not None:
        yield Ailment(
            level=Level.NOTICE,
            text=f"the run is paused: {ward.run_paused}",
            advice="`ringrift resume` lets it go on.",
        )


def paused(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    if ward.run_paused is None and (why := ward.paused.get(state.config)) is not None:
        yield Ailment(
            level=Level.NOTICE,
            text=f"{state.config} is paused: {why}",
            advice=f"`ringrift resume {state.config}` lets it go on.",
        )


def training_slot(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    if ward.is_running and (hold := slot_of(state)) is not None:
        yield Ailment(
            level=Level.NOTICE,
            text=f"the run does not train {state.config}: {hold.reason}",
            advice="It goes on when the slot is given back, or its holder is gone and the lease runs out.",
        )


def starving(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    """Work that is ordered and not taken, and stages that bring nothing although they could."""
    if not ward.is_running or state.config in ward.paused:
        return
    is_trained_by_other = slot_of(state) is not None
    for found in _starving(state, ward):
        if not (is_trained_by_other and found.evidence["stage"] == "train"):
            yield found


def _starving(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    under_way = {job.job_id for job in ward.running}
    for job in state.open_jobs.values():
        waits_s = ward.now_s - max(job.issued_s, ward.started_s)
        if job.job_id not in under_way and waits_s > WAITS_WARNING_S:
            yield _starves(state, job.kind, waits_s, f"{job.job_id} waits for a worker")
    yield from _late(state, ward)


def _late(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    """Stages without an open job that have brought nothing for long."""
    limit_s = max(WAITS_WARNING_S, JOBS_LONG * ward.rules.selfplay_job_s)
    newest = state.newest_model
    shard = next(reversed(state.shards.values()), None)
    began_s = max(state.first_s, ward.started_s)
    since = {"selfplay": began_s if shard is None else max(began_s, shard.made_s)}
    if waiting := open_candidates(state):
        played = [match.at_s for match in state.matches[-1:]]
        since["evaluate"] = max([began_s, waiting[-1].made_s, *played])
    if state.bucket.available > 2 * ward.rules.bucket.chunk_steps:  # whatever is being judged
        since["train"] = max(began_s, began_s if newest is None else newest.made_s)
    for kind, last_s in since.items():
        late_s = ward.now_s - last_s
        if late_s > limit_s and not state.open_of(kind):
            yield _starves(state, kind, late_s, f"{kind} has brought nothing and nothing of it is ordered")


def _starves(state: ConfigState, kind: str, late_s: float, what: str) -> Ailment:
    return Ailment(
        level=Level.PROBLEM if late_s > WAITS_PROBLEM_S else Level.WARNING,
        text=f"{state.config} starves: {what}, for {late_s / 60:.0f} minutes",
        advice=f"`ringrift explain {state.config}` says why; add workers if all are busy.",
        evidence={"stage": kind, "waits_s": late_s},
    )


def workers(ward: Ward) -> Iterator[Ailment]:
    if ward.is_running and not ward.workers and ward.now_s - ward.started_s > 60:
        yield Ailment(
            level=Level.PROBLEM,
            text="the run is alive and no worker is",
            advice="`ringrift daemons` shows what ended them; starting the run again brings them back.",
        )
    for worker in ward.workers:
        alive_s = worker.at_s - worker.started_s
        if ward.run_paused is not None and not worker.failed:
            continue  # it has nothing to do
        if alive_s > WORKER_IDLE_S and not worker.done and not worker.busy:
            failed = f" and failed {worker.failed} times" if worker.failed else ""
            yield Ailment(
                level=Level.PROBLEM if worker.failed else Level.WARNING,
                text=f"worker {worker.name} has finished nothing in {alive_s / 60:.0f} minutes{failed}",
                advice=f"Look at its log on {worker.node}, and at what it may claim (kinds, capabilities).",
                evidence={"worker": worker.name, "failed": worker.failed},
            )
        elif worker.failed > max(5, worker.done):
            yield Ailment(
                level=Level.PROBLEM,
                text=f"worker {worker.name} failed {worker.failed} jobs and finished {worker.done}",
                advice=f"Look at its log on {worker.node}: memory, disk, or a broken installation.",
                evidence={"worker": worker.name, "failed": worker.failed, "done": worker.done},
            )


def disk(ward: Ward) -> Iterator[Ailment]:
    free = ward.disk_free_bytes
    if free is None:
        return
    share = free / ward.disk_total_bytes if ward.disk_total_bytes else 1.0
    grave = free < DISK_PROBLEM_BYTES or share < DISK_PROBLEM_SHARE
    if grave or free < DISK_WARNING_BYTES or share < DISK_WARNING_SHARE:
        yield Ailment(
            level=Level.PROBLEM if grave else Level.WARNING,
            text=f"{free / GIB:.1f} GiB ({share:.0%}) are free where the data lie",
            advice="Make room, or move the data folder to a larger disk; a full disk stops the run.",
            evidence={"free_bytes": free},
        )


def clock(ward: Ward) -> Iterator[Ailment]:
    if abs(ward.clock_jump_s) >= CLOCK_JUMP_S:
        where = "forward" if ward.clock_jump_s > 0 else "back"
        yield Ailment(
            level=Level.WARNING,
            text=f"the clock was set {where} by {abs(ward.clock_jump_s):.0f} s while the run lived",
            advice="Keep it in step (NTP): leases and ages do not go by it, but times are shown by it.",
            evidence={"jump_s": ward.clock_jump_s},
        )


# Checks of what a run keeps: its facts against the high-water mark, and the files that its facts name.
#
# Files are read whole, those that are needed next first, as far as a bound on the bytes goes. One that is not
# here is no damage by itself: it may have been given up because other nodes have it. The champion never is.


READ_BYTES_MAX = 2 << 30
NAMED_MAX = 5
CHAMPION = "champion"


async def store_findings(kv: KeyValue, settings: Settings) -> list[Finding]:
    """Whether the database is whole, and whether the run had come further than it knows."""
    found = await check_store(kv, settings.data_dir)
    damaged = await asyncio.to_thread(check_whole, SqliteConfig.from_settings(settings))
    advice = "Restore a backup with `ringrift data restore`, or `ringrift rebuild`."
    lost = [
        Finding(check="store", level=Level.PROBLEM, text=what, advice=advice)
        for what in (*found.lost, *damaged)
    ]
    return lost + [Finding(check="store", level=Level.WARNING, text=note) for note in found.notes]


async def file_findings(
    blobs: Blobs, states: Sequence[ConfigState], *, bytes_max: int = READ_BYTES_MAX
) -> list[Finding]:
    """Which files that the facts name are damaged or not here."""
    found, left = [], bytes_max
    for state in states:
        missing, damaged = [], []
        for what, digest in needed_files(state):
            size = await blobs.size(digest)
            if size is None:
                missing.append(f"{what} {digest}")
            elif size <= left:
                left -= size
                try:
                    await blobs.verify(digest)
                except (Corrupt, KeyError):
                    damaged.append(f"{what} {digest}")
        without_champion = any(text.startswith(CHAMPION) for text in missing)
        for texts, level, how, advice in (
            (damaged, Level.PROBLEM, "damaged", "A job that needs one sets it aside and looks for a copy."),
            (
                missing,
                Level.PROBLEM if without_champion else Level.NOTICE,
                "not here",
                "If no other node or archive has them they are lost.",
            ),
        ):
            if texts:
                named = ", ".join(texts[:NAMED_MAX]) + (", …" if len(texts) > NAMED_MAX else "")
                text = (
                    f"files that the facts of {state.config} name and that are {how} ({len(texts)}): {named}"
                )
                found.append(
                    Finding(check="files", level=level, text=text, advice=advice, config=state.config)
                )
    return found


def needed_files(state: ConfigState) -> Iterator[tuple[str, str]]:
    """What each file is, and its digest; those that are needed next come first."""
    models = sorted(state.models.values(), key=lambda model: (model.digest != state.champion, -model.number))
    for model in (*models, *state.students.values()):
        yield (CHAMPION if model.digest == state.champion else "model"), model.digest
        yield "card", model.card
    if state.newest_samples is not None:
        yield "samples", state.newest_samples.digest
    for shard in reversed(state.shards.values()):
        if shard.state is not ShardState.REFUSED:
            yield "games", shard.digest
            if shard.report is not None:
                yield "report", shard.report
