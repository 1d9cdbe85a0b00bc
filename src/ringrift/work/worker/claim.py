"""One claimed item from its claim to its end: folder, job, lease, progress, completion.

While this runs the lease is renewed. If it is lost all the same, the job is killed and nothing it made
counts: every call to the queue carries the token of the claim, and the queue refuses an old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog

from ringrift.engine.ports import Claim, Engine, WorkState
from ringrift.engine.records import write_record
from ringrift.engine.work_rules import ENDED
from ringrift.errors import ConfigError, Corrupt, DigestMismatch, LeaseLost, RingRiftError, Unavailable
from ringrift.machine import machine_kind
from ringrift.runtime import Runtime, first_error
from ringrift.settings import Settings
from ringrift.task_owner import TaskOwner
from ringrift.work.job.folder import (
    DamagedInput,
    JobFolder,
    JobFolders,
    JobRecord,
    lay_out,
    note_damaged,
    role_of,
    take_in,
    was_damaged,
)
from ringrift.work.job.host import JobHost
from ringrift.work.job.protocol import (
    SEALED_JOB,
    JobArtifact,
    JobOrder,
    JobOutput,
    JobReport,
    SealedJob,
    end_processes_in,
    job_argv,
    job_environment,
    number,
    read_order,
)
from ringrift.work.job.runner import (
    RETRY_S,
    UNAVAILABLE_S,
    EndReason,
    Fate,
    JobEnd,
    JobLimits,
    JobTask,
    JobVerdict,
    RunningJob,
    judge,
    limits_for,
)
from ringrift.work.tasks import DurationStore, TaskOutcome
from ringrift.work.worker.records import (
    PROGRESS_S,
    RUNNING_RENEW_S,
    RUNNING_TTL_S,
    RunningRecord,
    WorkerConfig,
    epochs_so_far,
    loss_so_far,
    may_compute_on_gpu,
    running_key,
)

# What a worker tells the rest of the product as events.
#
# Events are for those who watch; the truth is in the queue. One that cannot be published is counted and never
# holds a job up.


log = structlog.get_logger()

SOURCE = "worker"
HEARTBEAT_S = 10.0
Publish = Callable[[str, Mapping[str, Any], str], Awaitable[object]]


class WorkerEvents:
    """The events of one worker."""

    def __init__(self, publish: Publish | None, *, node: str) -> None:
        self._publish, self._node = publish, node
        self.lost = 0

    async def claimed(self, claim: Claim) -> None:
        await self._say("WORK_CLAIMED", {**self._work(claim), "attempt": claim.attempt})

    async def started(self, claim: Claim, order: JobOrder, pid: int | None) -> None:
        await self._say("WORK_STARTED", self._work(claim))
        await self._say("TASK_SPAWNED", {**self._task(claim), "config_key": order.config, "pid": pid})
        if claim.kind == "train":
            training = {"config_key": order.config, "job_id": claim.id, "node_id": self._node}
            await self._say("TRAINING_STARTED", training)

    async def moved(self, claim: Claim, order: JobOrder, job_output: JobOutput, elapsed_s: float) -> None:
        """At most every `HEARTBEAT_S` seconds."""
        share = None if not job_output.total else round(job_output.done / job_output.total, 4)
        games = int(job_output.done) if claim.kind == "selfplay" else None
        await self._say(
            "TASK_HEARTBEAT",
            {
                "task_id": claim.id,
                "node_id": self._node,
                "progress": share,
                "status": job_output.stage or "starting",
                "games_completed": games,
                "elapsed_seconds": round(elapsed_s, 1),
            },
        )
        if claim.kind == "train" and (loss := loss_so_far(job_output.extra, "train")) is not None:
            about = {"config_key": order.config, "job_id": claim.id}
            epochs = {
                "epoch": epochs_so_far(job_output.extra, job_output.done),
                "total_epochs": _total_epochs(job_output),
            }
            losses = {"train_loss": loss, "val_loss": loss_so_far(job_output.extra, "held")}
            rate = {"learning_rate": number(job_output.extra.get("lr"))}
            await self._say("TRAINING_PROGRESS", {**about, **epochs, **losses, **rate})

    async def completed(self, claim: Claim, order: JobOrder, report: JobReport) -> None:
        took = {"duration_seconds": round(report.wall_s, 3), "config_key": order.config}
        result = {"status": report.status, "artifacts": len(report.artifacts)}
        await self._say("WORK_COMPLETED", {**self._work(claim), **took, "result": result})
        await self._say("TASK_COMPLETED", {**self._task(claim), **took, "result": result})

    async def failed(
        self,
        claim: Claim,
        order: JobOrder,
        verdict: JobVerdict,
        *,
        dead: bool,
        elapsed_s: float,
        limit_s: float,
    ) -> None:
        if verdict.status == "timeout":
            took = {"duration_seconds": elapsed_s, "timeout_seconds": limit_s}
            await self._say("WORK_TIMEOUT", {**self._work(claim), **took})
        error = {**self._work(claim), "error": verdict.error}
        if dead:
            await self._say("WORK_FAILED", {**error, "attempts": claim.attempt, "config_key": order.config})
        else:
            await self._say("WORK_RETRY", {**error, "attempt": claim.attempt})
        payload = {**self._task(claim), "error": verdict.error, "error_type": verdict.status}
        await self._say("TASK_FAILED", {**payload, "retryable": not dead, "duration_seconds": elapsed_s})

    async def made_way(self, job: Claim, waiting: Claim, *, runtime_s: float) -> None:
        """A job was asked to yield its slot to another one."""
        payload = {"preempted_job_id": job.id, "preempted_job_type": job.kind}
        payload |= {"preempting_job_id": waiting.id, "preempting_job_type": waiting.kind}
        await self._say(
            "JOB_PREEMPTED", {"node_id": self._node, **payload, "runtime_seconds": round(runtime_s, 1)}
        )

    async def given_back(self, claim: Claim, why: str) -> None:
        payload = {**self._task(claim), "reason": why, "component": SOURCE}
        await self._say("TASK_ABANDONED", payload)

    async def orphaned(self, item_id: str, kind: str) -> None:
        payload = {"task_id": item_id, "task_type": kind, "node_id": self._node}
        await self._say("TASK_ORPHANED", {**payload, "reason": "its worker was killed"})

    def _work(self, claim: Claim) -> dict[str, Any]:
        return {"work_id": claim.id, "work_type": claim.kind, "node_id": self._node}

    def _task(self, claim: Claim) -> dict[str, Any]:
        return {"task_id": claim.id, "task_type": claim.kind, "node_id": self._node}

    async def _say(self, event: str, payload: Mapping[str, Any]) -> None:
        if self._publish is None:
            return
        try:
            await self._publish(event, {k: v for k, v in payload.items() if v is not None}, SOURCE)
        except RingRiftError as error:
            self.lost += 1
            log.warning("worker.event_lost", event_type=event, error=str(error), lost=self.lost)


def _total_epochs(job_output: JobOutput) -> int | None:
    """How many there will be, by the steps that one took; a trainer without epochs counts its steps."""
    epoch, step = number(job_output.extra.get("epoch")), number(job_output.extra.get("step"))
    if not job_output.total:
        return None
    return max(1, round(job_output.total * epoch / step)) if epoch and step else round(job_output.total)


# What all claims of a worker share.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Where a worker works, and what with."""

    config: WorkerConfig
    engine: Engine
    runtime: Runtime
    settings: Settings
    folders: JobFolders
    events: WorkerEvents
    durations: DurationStore
    host: JobHost | None = None  # None: every job is a program that is started

    async def timeout_s(self, kind: str, config: str) -> float | None:
        """From measured durations; None if they cannot be had now."""
        try:
            return await self.durations.timeout_s(kind, config)
        except RingRiftError as error:
            log.warning("worker.durations_unknown", kind=kind, error=str(error))
            return None

    async def measured(self, kind: str, config: str, seconds: float, *, outcome: TaskOutcome) -> None:
        """Remember how long a job took; the job is over whether that works or not."""
        try:
            await self.durations.record(kind, config, self.config.node, seconds, outcome=outcome)
        except RingRiftError as error:
            log.warning("worker.duration_not_kept", kind=kind, error=str(error))


# How far a job is, told while it runs: as a record at most once a second, as events less often.


TELL_STOP_S = 10.0
START_S = 0.1  # between two looks whether the process is there


async def tell_progress(claim: Claim, order: JobOrder, job: RunningJob, context: WorkerContext) -> None:
    """Runs until it is cancelled."""
    runtime, events = context.runtime, context.events
    while job.pid is None:
        await runtime.sleep(START_S)
    await events.started(claim, order, job.pid)
    last, renewed_s, event_s = "", -RUNNING_RENEW_S, runtime.monotonic_s()
    while True:
        now_s, line = runtime.monotonic_s(), f"{job.job_output.last_line}{job.job_output.extra}"
        if line != last or now_s - renewed_s >= RUNNING_RENEW_S:
            last, renewed_s = line, now_s
            await _write(claim, order, job, context)
        if now_s - event_s >= HEARTBEAT_S:
            event_s = now_s
            await events.moved(claim, order, job.job_output, job.elapsed_s)
        await runtime.sleep(PROGRESS_S)


async def forget_progress(item_id: str, context: WorkerContext) -> None:
    """The job is over. A record that stays, because the engine is away, runs out by itself."""
    try:
        await context.engine.kv.delete(running_key(item_id))
    except RingRiftError as error:
        log.warning("worker.progress_not_told", item=item_id, error=str(error))


async def _write(claim: Claim, order: JobOrder, job: RunningJob, context: WorkerContext) -> None:
    job_output = job.job_output
    record = RunningRecord(
        job_id=claim.id,
        kind=claim.kind,
        config=order.config,
        worker=context.config.name,
        node=context.config.node,
        pid=job.pid,
        attempt=claim.attempt,
        stage=job_output.stage or "starting",
        done=job_output.done,
        total=job_output.total,
        rate=job_output.rate,
        eta_s=job_output.eta_s,
        started_s=job.started_s,
        at_s=context.runtime.now_s(),
        elapsed_s=round(job.elapsed_s, 1),
        cpu_s=round(max(job_output.cpu_s, job.usage.cpu_s), 1),
        memory_mb=round(job.usage.memory_mb, 1),
        line=job_output.last_line,
        extra=job_output.extra,
    )
    try:
        await write_record(context.engine.kv, running_key(claim.id), record, ttl_s=RUNNING_TTL_S)
    except RingRiftError as error:
        log.warning("worker.progress_not_told", item=claim.id, error=str(error))


T = TypeVar("T")
SELFPLAY = "selfplay"


class ClaimedJob:
    """The work on one claim."""

    def __init__(self, claim: Claim, context: WorkerContext) -> None:
        self._claim, self._context = claim, context
        self._folder: JobFolder = context.folders.of(claim.id)
        self._order = JobOrder(config="", params={})
        self._limits: JobLimits | None = None
        self._job: RunningJob | None = None
        self._stop_asked = self._yield_asked = False
        self._claimed_s = context.runtime.monotonic_s()
        self._is_over = False  # the queue knows how it ended, and there is no lease to keep
        self._lost = ""
        self._begun_s = context.runtime.monotonic_s()
        self._wall_s = self._cpu_s = self._gpu_s = 0.0  # of all attempts, as far as their ends were noted

    @property
    def item_id(self) -> str:
        return self._claim.id

    def ask_to_stop(self) -> None:
        """Let the job seal what it has; the item goes back to the queue."""
        self._stop_asked = True
        if self._job is not None:
            self._job.ask_to_end(EndReason.STOP, "the worker stops")

    @property
    def can_yield(self) -> bool:
        """Whether the job ends well when it is asked to, and was not asked yet."""
        params = self._claim.payload.get("params")
        hands_over = isinstance(params, dict) and params.get("hand_over") is True
        return self._claim.kind == SELFPLAY and hands_over and not (self._yield_asked or self._stop_asked)

    @property
    def claim(self) -> Claim:
        return self._claim

    @property
    def claimed_s(self) -> float:
        return self._claimed_s

    def ask_to_yield(self) -> None:
        """Let the job end with what it has; others go on with it."""
        self._yield_asked = True
        if self._job is not None:
            self._job.ask_to_end(EndReason.YIELD, "other work waits")

    async def carry_out(self) -> Fate:
        """Do it, and tell the queue how it went; return that."""
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    keeping = group.create_task(self._keep_lease())
                    try:
                        return await self._carry_out()
                    except LeaseLost as lost:
                        return await self._drop(str(lost))
                    finally:
                        keeping.cancel()
        finally:
            await forget_progress(self._claim.id, self._context)

    async def _carry_out(self) -> Fate:
        begun_s = self._begun_s
        await self._context.events.claimed(self._claim)
        try:
            end = await self._attempt()
            verdict = judge(end, attempt=self._claim.attempt)
            if verdict.fate is Fate.COMPLETE:
                return await self._complete(await self._report(end, verdict))
        except LeaseLost:
            raise
        except RingRiftError as error:
            verdict = _not_even_run(error)
        except OSError as error:
            after_s = UNAVAILABLE_S  # the disk is full, or a folder cannot be written
            verdict = JobVerdict(
                fate=Fate.FAIL, status="unavailable", error=str(error), retry_after_s=after_s
            )
        if self._lost or verdict.fate is Fate.DROP:
            return await self._drop(self._lost or verdict.error)
        if verdict.fate is Fate.RELEASE or self._stop_asked:
            return await self._give_back()
        return await self._fail(verdict, elapsed_s=self._context.runtime.monotonic_s() - begun_s)

    # --- the job ------------------------------------------------------------------------------------

    async def _attempt(self) -> JobEnd:
        claim, context = self._claim, self._context
        self._order = order = read_order(claim.payload)
        said = context.settings.job(claim.kind)
        measured_s = await context.timeout_s(claim.kind, order.config)
        self._limits = limits_for(claim.kind, order, said, measured_timeout_s=measured_s)
        await self._take_folder(order)
        env = job_environment(
            item_id=claim.id,
            kind=claim.kind,
            config=order.config,
            out=str(self._folder.out.absolute()),
            trace=claim.trace,
            also=said.env,
        )
        task = JobTask(
            argv=job_argv(claim.kind, said),
            env=env,
            folder=self._folder.out,
            params=self._folder.params,
            log=self._folder.log,
            limits=self._limits,
            grace_s=context.settings.job_grace_period,
        )
        is_hosted = context.host is not None and context.host.takes(claim.kind, said, env)
        self._job = job = RunningJob(task, runtime=context.runtime, host=context.host if is_hosted else None)
        if self._stop_asked:
            self.ask_to_stop()
        elif self._yield_asked:
            self.ask_to_yield()
        if self._lost:
            job.ask_to_end(EndReason.LEASE_LOST, self._lost)
        # An owner and not a group: work is not ended because nobody could be told how far it is.
        telling = TaskOwner("progress of jobs")
        telling.create_task(tell_progress(claim, order, job, context), name=claim.id)
        try:
            end = await job.run()
            self._wall_s += end.wall_s
            self._cpu_s += end.cpu_s
            self._gpu_s += _gpu_s(end, order)
            # What left the process group could still write to files that are about to be taken in.
            await asyncio.to_thread(end_processes_in, self._folder.out)
            return end
        finally:
            await telling.stop(TELL_STOP_S)

    async def _take_folder(self, order: JobOrder) -> None:
        """Make the folder ours alone, with what the order says in it."""
        folder = self._folder
        before = await asyncio.to_thread(folder.read_record)
        if before is not None:
            await asyncio.to_thread(end_processes_in, self._folder.out)
            self._wall_s, self._cpu_s, self._gpu_s = before.wall_s, before.cpu_s, before.gpu_s
        await self._lay_out(order)
        record = self._record(self._context.config.name, abandoned=0 if before is None else before.abandoned)
        await asyncio.to_thread(folder.write_record, record)

    def _record(self, worker: str | None, *, abandoned: int) -> JobRecord:
        return JobRecord(
            item_id=self._claim.id,
            kind=self._claim.kind,
            config=self._order.config,
            worker=worker,
            token=self._claim.token,
            abandoned=abandoned,
            wall_s=self._wall_s,
            cpu_s=self._cpu_s,
            gpu_s=self._gpu_s,
        )

    async def _lay_out(self, order: JobOrder) -> None:
        """Bring the inputs in; what is wrong with one is said, and written down for those who can mend it."""
        claim, kv, node = self._claim, self._context.engine.kv, self._context.config.node
        try:
            await lay_out(self._folder, order, self._context.engine.blobs)
        except DigestMismatch as error:
            for name, digest in order.inputs.items():
                if digest not in error.found:
                    continue
                found = DamagedInput(
                    digest=digest,
                    node=node,
                    name=name,
                    item_id=claim.id,
                    config=order.config,
                    at_s=self._context.runtime.now_s(),
                )
                await note_damaged(kv, found)
            raise
        except Unavailable as error:
            for name, digest in order.inputs.items():
                if digest in error.what and await was_damaged(kv, digest, node):
                    what = (
                        f"{role_of(name)} ({digest}) was damaged and is set aside, and no other copy is here"
                    )
                    raise Unavailable(what, retry_after_s=error.retry_after_s) from None
            raise

    async def _leave_folder(self) -> None:
        """Say that nobody works in it now, before the item can be another's."""
        try:
            found = await asyncio.to_thread(self._folder.read_record)
            abandoned = 0 if found is None else found.abandoned
            if await asyncio.to_thread(self._folder.path.is_dir):
                await asyncio.to_thread(self._folder.write_record, self._record(None, abandoned=abandoned))
        except OSError as error:  # a full disk; whoever claims the item next makes the folder his own
            log.warning("worker.folder_not_left", item=self._claim.id, error=str(error))

    # --- while it runs ------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        claim, runtime, config = self._claim, self._context.runtime, self._context.config
        until_s, pause_s = runtime.boot_s() + config.lease_s, config.renew_s
        while True:
            await runtime.sleep(pause_s)
            asked_s = runtime.boot_s()
            try:
                await self._context.engine.queue.renew(claim.id, token=claim.token, lease_s=config.lease_s)
                until_s, pause_s = asked_s + config.lease_s, config.renew_s
            except LeaseLost as lost:
                if not self._is_over:
                    self._lose(str(lost))
                return
            except Unavailable as error:
                log.warning("worker.renewal_failed", item=claim.id, error=str(error))
                pause_s = config.renew_s / 4
                # By our own clock, and a little early: nobody may begin while our job still runs.
                if runtime.boot_s() >= until_s - 2 * pause_s:
                    self._lose(f"it could not be renewed: {error}")
                    return

    def _lose(self, why: str) -> None:
        self._lost = why
        log.warning("worker.lease_lost", item=self._claim.id, kind=self._claim.kind, why=why)
        if self._job is not None:
            self._job.ask_to_end(EndReason.LEASE_LOST, why)

    # --- how it ended -------------------------------------------------------------------------------

    async def _report(self, end: JobEnd, verdict: JobVerdict) -> JobReport:
        assert self._job is not None
        config, blobs = self._context.config, self._context.engine.blobs
        artifacts, fields = await take_in(
            self._folder, end.job_output, blobs, asked=(self._claim.kind, self._order)
        )
        working_s = end.job_output.working_s
        report = JobReport(
            status=verdict.status,
            worker=config.name,
            node=config.node,
            started_s=self._job.started_s,
            wall_s=round(self._wall_s, 3),
            start_s=None if working_s is None else round(working_s - self._begun_s, 3),
            cpu_s=round(self._cpu_s, 3),
            gpu_s=round(self._gpu_s, 3),
            node_s=round(config.node_seconds(cpu_s=self._cpu_s, gpu_s=self._gpu_s), 3),
            machine=await asyncio.to_thread(self._machine),
            artifacts=artifacts,
            fields=fields,
        )
        return await self._seal_job(report) if artifacts else report

    def _machine(self) -> str:
        """The kind of machine that the games depend on; empty where a GPU computed, or may have."""
        is_by_gpu = self._context.config.gpus > 0 or (self._gpu_s > 0 and may_compute_on_gpu())
        return "" if is_by_gpu else machine_kind()

    async def _seal_job(self, report: JobReport) -> JobReport:
        """Keep order and report as a sealed file, too; the report with that file among its artifacts."""
        claim, blobs = self._claim, self._context.engine.blobs
        sealed = SealedJob(
            item_id=claim.id,
            kind=claim.kind,
            order=self._order,
            report=report,
            ended_s=self._context.runtime.now_s(),
        )
        content = msgspec.json.encode(sealed)
        made = JobArtifact(
            name=f"{claim.id}.job.json",
            kind=SEALED_JOB,
            digest=await blobs.put_bytes(content),
            size_bytes=len(content),
        )
        return msgspec.structs.replace(report, artifacts=(*report.artifacts, made))

    async def _complete(self, report: JobReport) -> Fate:
        claim, queue = self._claim, self._context.engine.queue
        await self._insist(
            lambda: queue.complete(claim.id, token=claim.token, result=report.as_result()), "complete"
        )
        log.info(
            "worker.completed", item=claim.id, kind=claim.kind, status=report.status, wall_s=report.wall_s
        )
        await asyncio.to_thread(self._folder.remove)
        await self._context.measured(claim.kind, self._order.config, report.wall_s, outcome=TaskOutcome.OK)
        await self._context.events.completed(claim, self._order, report)
        return Fate.COMPLETE

    async def _give_back(self) -> Fate:
        claim, queue = self._claim, self._context.engine.queue
        await self._leave_folder()
        await self._insist(lambda: queue.release(claim.id, token=claim.token), "release")
        log.info("worker.given_back", item=claim.id, kind=claim.kind)
        await self._context.events.given_back(
            claim, "the worker stops" if self._stop_asked else "other work waits"
        )
        return Fate.RELEASE

    async def _fail(self, verdict: JobVerdict, *, elapsed_s: float) -> Fate:
        claim, queue = self._claim, self._context.engine.queue
        await self._leave_folder()
        state = await self._insist(
            lambda: queue.fail(
                claim.id,
                token=claim.token,
                error=verdict.error,
                retry_after_s=verdict.retry_after_s,
                final=verdict.final,
            ),
            "fail",
        )
        log.warning("worker.failed", item=claim.id, kind=claim.kind, error=verdict.error, state=state)
        limit_s = 0.0 if self._limits is None else self._limits.timeout_s
        dead = state is WorkState.DEAD
        outcome = TaskOutcome.TIMED_OUT if verdict.status == EndReason.TIMEOUT else TaskOutcome.FAILED
        await self._context.measured(claim.kind, self._order.config, elapsed_s, outcome=outcome)
        await self._context.events.failed(
            claim, self._order, verdict, dead=dead, elapsed_s=elapsed_s, limit_s=limit_s
        )
        return Fate.FAIL

    async def _drop(self, why: str) -> Fate:
        """The item is not ours any more; neither is its folder, unless it became nobody's."""
        claim = self._claim
        log.warning("worker.dropped", item=claim.id, kind=claim.kind, why=why)
        item = await self._context.engine.queue.get(claim.id)
        if item is None or item.state in ENDED:
            await asyncio.to_thread(self._folder.remove)
        await self._context.events.given_back(claim, why)
        return Fate.DROP

    async def _insist(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Tell the queue, again and again while the lease holds; a refusal is final."""
        while True:
            try:
                answer = await call()
                self._is_over = True
                return answer
            except Unavailable as error:
                log.warning("worker.queue_unavailable", item=self._claim.id, call=what, error=str(error))
                if self._context.engine.failure:
                    raise  # for good; whoever claims the item next goes on from its folder
                if self._lost:
                    raise LeaseLost(self._claim.id, token=self._claim.token, reason=self._lost) from error
                await self._context.runtime.sleep(self._context.config.pause_s)


def _gpu_s(end: JobEnd, order: JobOrder) -> float:
    """A program of a user's own that says nothing of it had its GPU all the time."""
    if end.job_output.gpu_s == 0.0 and order.gpu:
        return end.wall_s
    return min(end.job_output.gpu_s, end.wall_s)


def _not_even_run(error: RingRiftError) -> JobVerdict:
    """What becomes of an item whose job could not be started, or whose output could not be taken in."""
    if isinstance(error, Unavailable):
        after_s = error.retry_after_s
        return JobVerdict(fate=Fate.FAIL, status="unavailable", error=str(error), retry_after_s=after_s)
    final = isinstance(error, ConfigError)
    status = "wrong_input" if final else "corrupt" if isinstance(error, Corrupt) else "failed"
    return JobVerdict(fate=Fate.FAIL, status=status, error=str(error), retry_after_s=RETRY_S, final=final)
