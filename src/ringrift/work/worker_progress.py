"""How far a job is, told while it runs: as a record at most once a second, as events less often."""

from __future__ import annotations

import msgspec
import structlog

from ringrift.engine.ports import Claim
from ringrift.errors import RingRiftError
from ringrift.work.job_orders import JobOrder
from ringrift.work.job_runner import RunningJob
from ringrift.work.worker_events import HEARTBEAT_S
from ringrift.work.worker_records import (
    RUNNING_RENEW_S,
    RUNNING_TTL_S,
    TELL_S,
    RunningRecord,
    running_key,
)
from ringrift.work.worker_shop import Workshop

log = structlog.get_logger()

START_S = 0.1  # between two looks whether the process is there


async def tell_progress(claim: Claim, order: JobOrder, job: RunningJob, shop: Workshop) -> None:
    """Runs until it is cancelled."""
    runtime, events = shop.runtime, shop.events
    while job.pid is None:
        await runtime.sleep(START_S)
    await events.started(claim, order, job.pid)
    told, told_s, event_s = "", -RUNNING_RENEW_S, runtime.monotonic_s()
    while True:
        now_s, news = runtime.monotonic_s(), f"{job.talk.last_line}{job.talk.extra}"
        if news != told or now_s - told_s >= RUNNING_RENEW_S:
            told, told_s = news, now_s
            await _write(claim, order, job, shop)
        if now_s - event_s >= HEARTBEAT_S:
            event_s = now_s
            await events.moved(claim, order, job.talk, job.elapsed_s)
        await runtime.sleep(TELL_S)


async def forget_progress(item_id: str, shop: Workshop) -> None:
    """The job is over. A record that stays, because the engine is away, runs out by itself."""
    try:
        await shop.engine.kv.delete(running_key(item_id))
    except RingRiftError as error:
        log.warning("worker.progress_not_told", item=item_id, error=str(error))


async def _write(claim: Claim, order: JobOrder, job: RunningJob, shop: Workshop) -> None:
    talk = job.talk
    record = RunningRecord(
        job_id=claim.id,
        kind=claim.kind,
        config=order.config,
        worker=shop.config.name,
        node=shop.config.node,
        pid=job.pid,
        attempt=claim.attempt,
        stage=talk.stage or "starting",
        done=talk.done,
        total=talk.total,
        rate=talk.rate,
        eta_s=talk.eta_s,
        started_s=job.started_s,
        at_s=shop.runtime.now_s(),
        elapsed_s=round(job.elapsed_s, 1),
        cpu_s=round(max(talk.cpu_s, job.usage.cpu_s), 1),
        memory_mb=round(job.usage.memory_mb, 1),
        line=talk.last_line,
        extra=talk.extra,
    )
    try:
        await shop.engine.kv.put(running_key(claim.id), msgspec.json.encode(record), ttl_s=RUNNING_TTL_S)
    except RingRiftError as error:
        log.warning("worker.progress_not_told", item=claim.id, error=str(error))
