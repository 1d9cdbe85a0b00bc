"""The schedulers: what they hear changes what they show, wakes the loop, or moves a job."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import pytest
from structlog.testing import capture_logs

from ringrift.coordination.event_router import get_router
from ringrift.coordination.selfplay_scheduler import (
    JobPriority,
    PriorityJobScheduler,
    ScheduledJob,
    SelfplayOrchestrator,
    SelfplayScheduler,
    emit_selfplay_completion,
    get_loop_waker,
    get_selfplay_stats,
    select_curriculum_config,
    wire_selfplay_events,
)
from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Claimant, Completion, NewWork, WorkState
from ringrift.engine.run_reports import reported_getters
from ringrift.errors import ConfigError
from ringrift.events.catalog.table import CATALOG
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.testing.simulation import ManualRuntime
from ringrift.work.backpressure import MEASURED_S_MAX, Announced, keep_announced
from ringrift.work.coordinator import heard_by
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport


@pytest.fixture
def router():
    return UnifiedEventRouter(enable_cross_process_polling=False)


@pytest.fixture
def heard(router):
    """Everything that is published, checked against the catalog."""
    events = []

    def note(event):
        assert not CATALOG[event.event_type].problems(event.payload), event
        events.append((event.event_type, event.payload))

    router.subscribe(None, note, "test")
    return events


@pytest.fixture
async def selfplay(router):
    """The orchestrator over an engine in memory, as every process sees it."""
    runtime = ManualRuntime()
    engine = memory_engine(runtime)

    async def get_store():
        return engine

    orchestrator = SelfplayOrchestrator(router=router, runtime=runtime, get_store=get_store)
    orchestrator.wire()
    yield orchestrator, engine, runtime
    await engine.close()


ORDER = JobOrder(config="hex8_3p", params={"games": 40})


async def begun(engine, *, number=1):
    await engine.queue.add([NewWork(kind="selfplay", payload=ORDER.as_payload()) for _ in range(number)])
    return await engine.queue.claim(Claimant(worker="w", node="n1"), lease_s=1e6, limit=number)


def played(runtime, games=40):
    shard = JobArtifact(name="s", kind="shard", digest="d", size_bytes=1, counts={"games": games})
    started_s = runtime.now_s() - 10.0
    return JobReport(
        status="done", worker="w", node="n1", started_s=started_s, wall_s=10.0, cpu_s=9.0, artifacts=(shard,)
    ).as_result()


async def test_a_self_play_task_is_followed_from_start_to_end(selfplay):
    orchestrator, engine, runtime = selfplay
    (claim,) = await begun(engine)
    assert [task.task_id for task in await orchestrator.active_tasks()] == [claim.id]
    runtime.advance(10.0)
    await engine.queue.complete(claim.id, token=claim.token, result=played(runtime))
    (task,) = await orchestrator.history()
    assert (task.config_key, task.games_generated, task.success) == ("hex8_3p", 40, True)
    assert (task.node_id, task.games_requested, task.games_per_second) == ("n1", 40, 4.0)
    assert not await orchestrator.active_tasks()
    stats = await orchestrator.stats()
    assert (stats["games_by_config"], stats["games_by_node"]) == ({"hex8_3p": 40}, {"n1": 40})
    assert (stats["games_last_hour"], stats["completed_tasks"], stats["failed_tasks"]) == (40, 1, 0)


async def test_games_count_when_the_run_has_them_and_not_when_they_are_told(selfplay, router):
    orchestrator, engine, runtime = selfplay
    told = {"config_key": "hex8_3p", "task_id": "t1", "node_id": "n1", "games_generated": 1000}
    await router.publish("SELFPLAY_COMPLETE", told)
    stats = await orchestrator.stats()
    assert stats["total_games"] is None, "no run has said how many it has"
    assert (stats["games_last_hour"], stats["completed_tasks"]) == (None, None), "nor has anything played"
    await put_run(engine, runtime, hex8_3p=idle_config(games=30, games_unchecked=10))
    assert (await orchestrator.stats())["total_games"] == 40
    assert get_loop_waker().reasons["SELFPLAY_COMPLETE"] == 1


async def test_speed_is_unknown_of_a_run_that_fell_silent(selfplay):
    orchestrator, engine, runtime = selfplay
    await put_run(engine, runtime, hex8_3p=idle_config(games_per_s=2.5))
    assert (await orchestrator.stats())["games_per_second"] == 2.5
    runtime.advance(60.0)
    assert (await orchestrator.stats())["games_per_second"] is None


async def test_a_task_whose_worker_died_is_no_longer_active(selfplay, router):
    orchestrator, engine, _ = selfplay
    (claim,) = await begun(engine)
    await engine.queue.fail(claim.id, token=claim.token, error="its worker was killed", final=True)
    task = {"task_id": claim.id, "task_type": "selfplay", "node_id": "n1"}
    await router.publish("TASK_ORPHANED", {**task, "reason": "its worker was killed"})
    assert not await orchestrator.active_tasks()
    (ended,) = await orchestrator.history()
    assert (ended.error, ended.success, ended.games_generated) == ("its worker was killed", False, None)
    assert get_loop_waker().reasons["TASK_ORPHANED"] == 1


async def test_the_newest_tasks_are_found_among_many_ends(selfplay):
    orchestrator, engine, runtime = selfplay
    for _ in range(12):
        claims = await begun(engine, number=100)
        done = [Completion(id=each.id, token=each.token, result=played(runtime, 1)) for each in claims]
        assert await engine.queue.complete_many(done) == []
    history = await orchestrator.history(limit=1000)
    assert len(history) == 1000
    assert [task.task_id for task in history[:100]] == [claim.id for claim in reversed(claims)]
    assert len(await orchestrator.history(limit=5000)) == 1200


async def test_what_ended_before_is_not_read_again(selfplay, monkeypatch):
    """Health is asked for every few seconds, for as long as the run lasts."""
    orchestrator, engine, runtime = selfplay
    for _ in range(3):
        claims = await begun(engine, number=100)
        done = [Completion(id=each.id, token=each.token, result=played(runtime, 2)) for each in claims]
        assert await engine.queue.complete_many(done) == []
    assert (await orchestrator.stats())["completed_tasks"] == 300
    read = []
    ended = engine.queue.ended

    async def counted(**wanted):
        read.extend(found := await ended(**wanted))
        return found

    monkeypatch.setattr(engine.queue, "ended", counted)
    (claim,) = await begun(engine)
    await engine.queue.complete(claim.id, token=claim.token, result=played(runtime, 5))
    stats = await orchestrator.stats()
    assert (stats["completed_tasks"], stats["games_last_hour"]) == (301, 605)
    assert len(read) <= 2, "the oldest, to see what is kept, and the new one"


async def test_what_is_asked_of_it_on_the_loop_does_not_wait_for_the_store(router):
    async def no_store():
        pytest.fail("the loop would stand still meanwhile")

    orchestrator = SelfplayOrchestrator(router=router, runtime=ManualRuntime(), get_store=no_store)
    asked = [getter for getter in reported_getters(orchestrator) if not getter.waits]
    assert {getter.name for getter in asked} >= {"SelfplayOrchestrator:StoreCoordinator.get_metrics"}
    for getter in asked:
        getter.ask()


async def test_a_young_run_has_no_more_games_of_the_last_hour_than_in_all(selfplay):
    orchestrator, engine, runtime = selfplay
    (claim,) = await begun(engine)
    runtime.advance(10.0)
    await engine.queue.complete(claim.id, token=claim.token, result=played(runtime))
    await put_run(engine, runtime, hex8_3p=idle_config(games=30, games_unchecked=5))
    stats = await orchestrator.stats()
    assert (stats["total_games"], stats["games_last_hour"], stats["games_by_config"]) == (
        35,
        35,
        {"hex8_3p": 35},
    )


@pytest.mark.parametrize("wrong", [["hex8_2p"], [{}], 3, {"hex8_2p": "many"}, {3: 10}, {"hex8_2p": None}])
def test_what_is_no_number_of_games_by_config_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"games_by_config|a config"):
        select_curriculum_config(wrong)


async def test_a_task_that_was_revived_has_not_failed(selfplay):
    orchestrator, engine, _ = selfplay
    (claim,) = await begun(engine)
    await engine.queue.fail(claim.id, token=claim.token, error="its worker was killed", final=True)
    assert (await orchestrator.stats())["failed_tasks"] == 1
    await engine.queue.revive(claim.id)
    assert (await orchestrator.stats())["failed_tasks"] == 0


FULL = "pending_games holds 5000, 2000 is its soft limit"


async def test_backpressure_is_what_was_measured_also_by_a_run_before_this_one(selfplay):
    orchestrator, engine, runtime = selfplay
    assert (await orchestrator.stats())["backpressure"] is None
    held = Announced(active=True, changed_s=runtime.now_s(), reason=FULL, measured_s=runtime.now_s())
    await keep_announced(engine.kv, held)
    assert (await orchestrator.stats())["backpressure"] == FULL, "no event said so to this process"
    assert await asyncio.to_thread(orchestrator.is_paused) == (True, FULL)
    runtime.advance(MEASURED_S_MAX)
    assert (await orchestrator.stats())["backpressure"] is None, "nobody measures it any more"
    assert await asyncio.to_thread(orchestrator.is_paused) == (False, "")


async def test_backpressure_that_somebody_claims_is_none(selfplay, router):
    orchestrator, _, _ = selfplay
    await router.publish("BACKPRESSURE_ACTIVATED", {"level": "high", "reason": "x"}, "a user")
    assert (await orchestrator.stats())["backpressure"] is None
    assert await asyncio.to_thread(orchestrator.is_paused) == (False, "")
    assert "backpressure" not in orchestrator.get_metrics()
    assert get_loop_waker().reasons["BACKPRESSURE_ACTIVATED"] == 1, "the loop looks at what was measured"


async def test_the_documents_functions_work_on_the_process_router():
    wire_selfplay_events()
    heard = []
    get_router().subscribe("SELFPLAY_COMPLETE", lambda event: heard.append(event.payload["games_generated"]))
    await emit_selfplay_completion("x", "square8", 2, 12)
    assert heard == [12]
    assert get_selfplay_stats()["total_games"] is None, "nobody has seen a game of it"


def test_a_coordinator_without_a_reaction_is_refused(router):
    class Deaf(SelfplayOrchestrator):
        def reactions(self):
            return {}

    with pytest.raises(ConfigError, match="must hear BACKPRESSURE_ACTIVATED"):
        Deaf(router=router).wire()


# --- shares ---------------------------------------------------------------------------------------------


async def put_run(engine, runtime, **configs):
    seen = idle_run(at_s=runtime.now_s(), workers=2, configs=configs)
    await engine.kv.put(STATUS_KEY, msgspec.json.encode(seen))


async def test_the_scheduler_shows_and_tells_the_runs_shares(router, heard):
    runtime = ManualRuntime()
    engine = memory_engine(runtime)
    scheduler = SelfplayScheduler(router=router, runtime=runtime, kv=engine.kv)
    await put_run(engine, runtime, a_2p=idle_config(share=0.7, games=50), b_2p=idle_config(share=0.3))
    await scheduler._run_cycle()
    assert scheduler.get_priority_configs() == [("a_2p", 0.7), ("b_2p", 0.3)]
    assert scheduler.get_config_weights() == {"a_2p": 1.4, "b_2p": 0.6}
    assert scheduler.allocate_games(1000) == {"a_2p": 700, "b_2p": 300}
    assert [sum(scheduler.allocate_games(total).values()) for total in (0, 1, 3, 99)] == [2, 2, 3, 99]
    assert scheduler.search_budget("a_2p") == 64
    names = [name for name, _ in heard]
    assert names.count("SCHEDULER_REGISTERED") == names.count("SELFPLAY_ALLOCATION_UPDATED") == 2
    heard.clear()
    await scheduler._run_cycle()
    assert heard == []
    await put_run(engine, runtime, a_2p=idle_config(share=0.5), b_2p=idle_config(share=0.5))
    await scheduler._run_cycle()
    changes = {p["config_key"]: p["change_percent"] for name, p in heard if name == "SELFPLAY_RATE_CHANGED"}
    assert changes == pytest.approx({"a_2p": -28.57, "b_2p": 66.67}, abs=0.01)
    await engine.close()


async def test_a_start_is_no_change_of_shares_and_what_moved_meanwhile_is_one(router, heard):
    runtime = ManualRuntime()
    engine = memory_engine(runtime)

    async def a_start():
        heard.clear()
        await SelfplayScheduler(router=router, runtime=runtime, kv=engine.kv)._run_cycle()
        return [(name, payload["config_key"]) for name, payload in heard]

    await put_run(engine, runtime, a_2p=idle_config(share=0.7), b_2p=idle_config(share=0.3))
    assert len(await a_start()) == 4
    assert await a_start() == []
    await put_run(engine, runtime, a_2p=idle_config(share=0.5), c_2p=idle_config(share=0.5))
    assert await a_start() == [
        ("SCHEDULER_REGISTERED", "c_2p"),
        ("SELFPLAY_ALLOCATION_UPDATED", "a_2p"),
        ("SELFPLAY_RATE_CHANGED", "a_2p"),
        ("SELFPLAY_ALLOCATION_UPDATED", "c_2p"),
    ]
    await engine.close()


async def test_a_dead_node_gets_nothing_and_a_strained_one_half(router):
    runtime = ManualRuntime()
    engine = memory_engine(runtime)
    scheduler = SelfplayScheduler(router=router, runtime=runtime, kv=engine.kv)
    scheduler._subscribe()
    await router.publish("P2P_NODE_DEAD", {"node_id": "dead", "reason": "no answer"})
    strained = {"node_id": "hot", "resource_type": "cpu", "cpu_percent": 99.0}
    await router.publish("NODE_OVERLOADED", strained)
    nodes = {"well": 2, "hot": 2, "dead": 2}
    runtime_now = max(event.timestamp for event in router._event_history)
    runtime.advance(max(0.0, runtime_now - runtime.now_s()))
    assert scheduler.allocate_to_nodes(nodes, 300) == {"well": 200, "hot": 100, "dead": 0}
    assert scheduler.allocate_to_nodes(nodes, 10) == {"well": 7, "hot": 3, "dead": 0}
    assert scheduler.allocate_to_nodes({"dead": 2}, 10) == {"dead": 0}
    await router.publish("NODE_RECOVERED", {"node_id": "dead"})
    assert scheduler.allocate_to_nodes(nodes, 500)["dead"] == 200
    scheduler._unsubscribe()
    await engine.close()


async def test_a_gpu_is_too_small_by_its_whole_memory_and_not_by_what_is_free(router, heard):
    scheduler = SelfplayScheduler(router=router)
    scheduler._subscribe()
    scheduler.run_seen = idle_run(at_s=0.0, configs={"hex8_2p": idle_config()})
    idle = {"node_id": "n", "is_idle": False, "gpu_utilization": 99.0, "idle_duration_seconds": 0.0}
    size = {"node_id": "n", "gpu_utilization": 0.0, "cpu_utilization": 0.0, "available_slots": 1}

    def told():
        return [p["gpu_vram_gb"] for name, p in heard if name == "NODE_INCOMPATIBLE_WITH_WORKLOAD"]

    await router.publish("IDLE_STATE_BROADCAST", {**idle, "gpu_memory_free_gb": 2.0, "active_jobs": 1})
    assert (told(), scheduler.allocate_to_nodes({"n": 1}, 10)) == ([], {"n": 10})
    for _ in range(2):
        await router.publish("NODE_CAPACITY_UPDATED", {**size, "gpu_memory_gb": 4.0})
    assert (told(), scheduler.allocate_to_nodes({"n": 1}, 10)) == ([4.0], {"n": 0})
    await router.publish("NODE_CAPACITY_UPDATED", {**size, "gpu_memory_gb": 24.0})
    assert (told(), scheduler.allocate_to_nodes({"n": 1}, 10)) == ([4.0], {"n": 10})
    await router.publish("HOST_OFFLINE", {"node_id": "n", "reason": "no heartbeat"})
    await router.publish("NODE_CAPACITY_UPDATED", {**size, "gpu_memory_gb": 24.0})
    assert scheduler.allocate_to_nodes({"n": 1}, 10) == {"n": 0}
    scheduler._unsubscribe()


async def test_this_host_gets_games_whoever_says_that_it_is_gone(router):
    runtime = ManualRuntime()
    scheduler = SelfplayScheduler(router=router, runtime=runtime)
    scheduler._subscribe()
    await router.publish("HOST_OFFLINE", {"node_id": runtime.hostname, "reason": "hearsay"})
    assert scheduler.allocate_to_nodes({runtime.hostname: 1}, 100) == {runtime.hostname: 100}
    scheduler._unsubscribe()


async def test_a_host_that_is_back_online_gets_games_again(router):
    scheduler = SelfplayScheduler(router=router)
    scheduler._subscribe()
    await router.publish("HOST_OFFLINE", {"node_id": "n", "reason": "no heartbeat"})
    assert scheduler.allocate_to_nodes({"n": 1, "other": 1}, 100) == {"n": 0, "other": 100}
    await router.publish("HOST_ONLINE", {"node_id": "n"})
    assert scheduler.allocate_to_nodes({"n": 1, "other": 1}, 100) == {"n": 50, "other": 50}
    scheduler._unsubscribe()


async def test_a_new_champion_wakes_the_loop_and_is_shown(router):
    scheduler = SelfplayScheduler(router=router)
    scheduler._subscribe()
    promoted = {"config_key": "a_2p", "model_id": "m", "model_path": "blob:m", "elo": 1600.0}
    await router.publish("MODEL_PROMOTED", promoted)
    assert get_loop_waker().reasons["MODEL_PROMOTED"] == 1
    assert scheduler.signals.value("a_2p", "MODEL_PROMOTED", "elo", 0.0) == 1600.0
    scheduler._unsubscribe()


def test_the_scheduler_hears_what_the_catalog_says():
    assert len(heard_by("selfplay_scheduler")) >= 40
    assert set(SelfplayScheduler().wiring().subscribes) == set(heard_by("selfplay_scheduler"))


# --- jobs -----------------------------------------------------------------------------------------------


@pytest.fixture
async def jobs(router):
    runtime = ManualRuntime()
    engine = memory_engine(runtime)

    async def queue():
        return engine.queue

    scheduler = PriorityJobScheduler(queue, router=router, runtime=runtime)
    scheduler.wire()
    yield scheduler, engine
    await engine.close()


async def claim_all(engine, node="n"):
    claims = await engine.queue.claim(Claimant(worker=f"w@{node}", node=node), lease_s=60, limit=10)
    return [claim.id for claim in claims]


async def test_critical_jobs_go_first(jobs):
    scheduler, engine = jobs
    ids = {
        p: await scheduler.schedule(ScheduledJob(job_type="train", priority=p)) for p in reversed(JobPriority)
    }
    assert await claim_all(engine) == [ids[p] for p in JobPriority]


async def test_jobs_of_a_dead_host_are_offered_to_all_one_step_more_urgent(jobs, router):
    scheduler, engine = jobs
    job = ScheduledJob(job_type="export", host_preference="gone", config={"config": "hex8_2p"})
    old = await scheduler.schedule(job)
    assert await claim_all(engine, node="other") == []
    await router.publish("HOST_OFFLINE", {"node_id": "gone", "reason": "no heartbeat"})
    (new,) = await claim_all(engine, node="other")
    moved = await engine.queue.get(new)
    assert moved.priority > (await engine.queue.get(old)).priority
    assert (await engine.queue.get(old)).state is WorkState.CANCELLED
    assert moved.payload == {"config": "hex8_2p"}
    with pytest.raises(ConfigError, match="gone is away"):
        await scheduler.schedule(job)


async def test_a_job_for_this_host_stays_here_when_somebody_says_that_it_is_gone(jobs, router):
    scheduler, engine = jobs
    here = scheduler.runtime.hostname
    job_id = await scheduler.schedule(ScheduledJob(job_type="export", host_preference=here))
    with capture_logs() as said:
        await router.publish("HOST_OFFLINE", {"node_id": here, "reason": "hearsay"})
    assert [line for line in said if line["event"] == "jobs.host_gone"] == []
    assert await claim_all(engine, node="other") == []
    assert await claim_all(engine, node=here) == [job_id]
    assert await scheduler.schedule(ScheduledJob(job_type="export", host_preference=here))


async def test_a_preempted_job_comes_back(jobs, heard):
    scheduler, engine = jobs
    low = await scheduler.schedule(ScheduledJob(job_type="selfplay", priority=JobPriority.LOW))
    assert await claim_all(engine) == [low]
    urgent = await scheduler.schedule(ScheduledJob(job_type="evaluate", priority=JobPriority.CRITICAL))
    again = await scheduler.preempt(low, for_job_id=urgent)
    assert (await engine.queue.get(low)).state is WorkState.CANCELLED
    assert await claim_all(engine) == [urgent, again]
    assert "JOB_PREEMPTED" in [name for name, _ in heard]
    with pytest.raises(ConfigError, match="not more urgent"):
        await scheduler.preempt(urgent, for_job_id=again)


async def test_a_preempted_job_waits_for_the_host_that_it_was_for(jobs):
    scheduler, engine = jobs
    low = await scheduler.schedule(
        ScheduledJob(job_type="selfplay", priority=JobPriority.LOW, host_preference="n")
    )
    assert await claim_all(engine) == [low]
    urgent = await scheduler.schedule(ScheduledJob(job_type="evaluate", priority=JobPriority.CRITICAL))
    again = await scheduler.preempt(low, for_job_id=urgent)
    assert await claim_all(engine, node="other") == [urgent]
    assert await claim_all(engine) == [again]


async def test_a_host_that_is_back_gets_jobs_again(jobs, router):
    scheduler, engine = jobs
    await router.publish("HOST_OFFLINE", {"node_id": "n", "reason": "no heartbeat"})
    await router.publish("HOST_ONLINE", {"node_id": "n"})
    job_id = await scheduler.schedule(ScheduledJob(job_type="export", host_preference="n"))
    assert await claim_all(engine) == [job_id]


class Killed(BaseException):
    """The process is gone; nothing may handle this."""


class DyingQueue:
    """The same queue until its writes are used up."""

    def __init__(self, queue, writes):
        self._queue, self._left = queue, writes

    def __getattr__(self, name):
        if name in {"add", "cancel", "replace"}:
            self._left -= 1
            if self._left < 0:
                raise Killed
        return getattr(self._queue, name)


@pytest.mark.parametrize("writes", [0, 1, 2])
@pytest.mark.parametrize("preempts", [True, False])
async def test_a_job_is_neither_lost_nor_doubled_by_a_crash_while_it_moves(jobs, router, writes, preempts):
    scheduler, engine = jobs
    job = ScheduledJob(job_type="selfplay", priority=JobPriority.LOW, host_preference="n")
    moving = await scheduler.schedule(job)
    if preempts:
        assert await claim_all(engine) == [moving]
    urgent = await scheduler.schedule(ScheduledJob(job_type="evaluate", priority=JobPriority.CRITICAL))

    async def dying():
        return queue

    queue, scheduler._get_queue = DyingQueue(engine.queue, writes), dying
    move = scheduler.preempt(moving, for_job_id=urgent) if preempts else scheduler.requeue_host("n")
    with contextlib.suppress(Killed):
        await move
    found = [item for _, item in await engine.queue.unended(after=0, limit=10) if item.kind == "selfplay"]
    assert len(found) == 1
    assert (found[0].id == moving) is (writes == 0)


def test_rarely_played_configs_are_picked_more_often():
    rng = random.Random(1)
    picks = [select_curriculum_config({"many": 9999, "few": 999}, rng=rng) for _ in range(2000)]
    assert 0.87 < picks.count("few") / len(picks) < 0.94
    assert select_curriculum_config({"many": 10**6, "new": 5}, rng=rng) == "new"
    with pytest.raises(ConfigError):
        select_curriculum_config({})
