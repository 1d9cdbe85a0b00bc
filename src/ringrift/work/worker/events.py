"""What a worker tells the rest of the product as events.

Events are for those who watch; the truth is in the queue. One that cannot be published is counted and never
holds a job up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from ringrift.engine.ports import Claim
from ringrift.errors import RingRiftError
from ringrift.work.job.protocol import JobOrder, JobOutput, JobReport, number
from ringrift.work.job.runner import JobVerdict

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
        if claim.kind == "train" and (loss := _loss(job_output, "train")) is not None:
            about = {"config_key": order.config, "job_id": claim.id}
            epochs = {"epoch": _epoch(job_output), "total_epochs": _total_epochs(job_output)}
            losses = {"train_loss": loss, "val_loss": _loss(job_output, "held")}
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
        told = {**self._task(claim), "error": verdict.error, "error_type": verdict.status}
        await self._say("TASK_FAILED", {**told, "retryable": not dead, "duration_seconds": elapsed_s})

    async def made_way(self, job: Claim, waiting: Claim, *, runtime_s: float) -> None:
        """A job was asked to yield its slot to another one."""
        told = {"preempted_job_id": job.id, "preempted_job_type": job.kind}
        told |= {"preempting_job_id": waiting.id, "preempting_job_type": waiting.kind}
        await self._say(
            "JOB_PREEMPTED", {"node_id": self._node, **told, "runtime_seconds": round(runtime_s, 1)}
        )

    async def given_back(self, claim: Claim, why: str) -> None:
        told = {**self._task(claim), "reason": why, "component": SOURCE}
        await self._say("TASK_ABANDONED", told)

    async def orphaned(self, item_id: str, kind: str) -> None:
        told = {"task_id": item_id, "task_type": kind, "node_id": self._node}
        await self._say("TASK_ORPHANED", {**told, "reason": "its worker was killed"})

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


def _loss(job_output: JobOutput, name: str) -> float | None:
    """The whole loss of a training, on its own rows or held-out ones; a foreign trainer says just `loss`."""
    parts = [number(job_output.extra.get(f"{name}_{part}")) for part in ("policy", "value")]
    known = [float(part) for part in parts if part is not None]
    if known:
        return sum(known)
    said = number(job_output.extra.get("loss")) if name == "train" else None
    return None if said is None else float(said)


def _epoch(job_output: JobOutput) -> int:
    return int(number(job_output.extra.get("epoch")) or job_output.done)


def _total_epochs(job_output: JobOutput) -> int | None:
    """How many there will be, by the steps that one took; a trainer without epochs counts its steps."""
    epoch, step = number(job_output.extra.get("epoch")), number(job_output.extra.get("step"))
    if not job_output.total:
        return None
    return max(1, round(job_output.total * epoch / step)) if epoch and step else round(job_output.total)
