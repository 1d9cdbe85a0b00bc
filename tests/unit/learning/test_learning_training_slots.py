"""Training slots: one per config, eight in all, never two holders, and every no has a reason."""

from __future__ import annotations

import asyncio
import re
import threading

import msgspec
import pytest
from feedback_kit import Run, checked_shard, trained_model
from learning_story import RULES

from ringrift.coordination import training_coordinator
from ringrift.coordination.event_router import get_router
from ringrift.coordination.training_coordinator import (
    Refusal,
    Refused,
    TrainingCoordinator,
    TrainingJob,
    TrainingSlots,
    async_can_train,
    async_request_training,
    async_training_slot,
    can_train,
    get_training_coordinator,
    get_training_status,
    release_training_slot,
    request_training_slot,
    training_slot,
    update_training_progress,
    wire_training_events,
)
from ringrift.engine.blocking import run_blocking
from ringrift.engine.leases import LEASE_PREFIX, LeaseConfig
from ringrift.engine.memory import memory_engine
from ringrift.engine.opening import get_engine_blocking, has_store
from ringrift.engine.ports import Claimant, NewWork
from ringrift.engine.run_reports import reported_getters
from ringrift.errors import ConfigError, LeaseLost, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning import requests
from ringrift.learning.facts.facts import JobEnded
from ringrift.learning.facts.state import TRAININGS_MAX, EndedTraining
from ringrift.learning.plan.orders import train_order
from ringrift.learning.requests import JOBS, end_gone_trainings
from ringrift.runtime import system_runtime
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime, simulate
from ringrift.work.worker.records import RunningRecord, running_key

SHORT = LeaseConfig(lease_s=9.0, renew_s=1.0)


def two_processes(slots_max=8):
    runtime = SimulatedRuntime()
    engine = memory_engine(runtime)

    async def opened():
        return engine

    return (
        engine,
        runtime,
        [TrainingSlots(opened, runtime=runtime, slots_max=slots_max, config=SHORT) for _ in "ab"],
    )


def test_a_config_is_trained_by_one_and_goes_to_the_next():
    async def main():
        engine, _, (first, second) = two_processes()
        job = await first.request("hex8_2p")
        assert isinstance(job, TrainingJob)
        refused = await second.request("hex8_2p")
        assert isinstance(refused, Refused)
        assert refused.reason is Refusal.ALREADY_RUNNING
        assert isinstance(await second.request("hex8_3p"), TrainingJob)
        assert [each.config_key for each in await second.running()] == ["hex8_2p", "hex8_3p"]
        assert await first.release(job.job_id)
        assert not await first.release(job.job_id)
        again = await second.request("hex8_2p")
        assert isinstance(again, TrainingJob)
        assert again.token > job.token
        await second.release_all()
        await engine.close()

    simulate(main())


def test_eight_in_all():
    async def main():
        engine, _, (first, second) = two_processes()
        for number in range(8):
            assert isinstance(await first.request(f"c{number}_2p"), TrainingJob)
        refused = await second.request("c9_2p")
        assert refused.reason is Refusal.MAX_CONCURRENT_REACHED
        assert (await second.can_train("c9_2p")).reason is Refusal.MAX_CONCURRENT_REACHED
        await first.release_all()
        assert isinstance(await second.request("c9_2p"), TrainingJob)
        await second.release_all()
        await engine.close()

    simulate(main())


def test_a_dead_trainers_slot_is_taken_over_and_the_dead_one_is_fenced_off():
    async def main():
        engine, runtime, (dead, alive) = two_processes(slots_max=1)
        job = await dead.request("hex8_2p")
        await dead._held[job.job_id].renewals.stop(1.0)  # the process hangs: nobody renews
        await runtime.sleep(SHORT.lease_s + 1)
        assert await alive.running() == []  # what it wrote is still there, and nobody stands behind it
        taken = await alive.request("hex8_2p", wait_s=60.0)
        assert isinstance(taken, TrainingJob)
        assert taken.token > job.token
        assert not dead.holds(job.job_id)
        with pytest.raises(LeaseLost):
            await dead.update(job.job_id, epochs=3)
        await alive.update(taken.job_id, epochs=4)
        await dead.release(job.job_id)
        assert [each.epochs for each in await alive.running()] == [4]
        await runtime.sleep(60.0)
        assert alive.holds(taken.job_id)  # it renews for as long as it lives
        await alive.release_all()
        await engine.close()

    simulate(main())


def test_a_trainer_that_dies_has_ended_and_whoever_looks_is_told_once():
    async def main():
        engine, runtime, (dead, alive) = two_processes()
        told = []

        async def tell(job):
            told.append((job.job_id, job.error))

        alive.on_gone = tell
        job = await dead.request("hex8_2p", model_version="v7")
        await dead._held[job.job_id].renewals.stop(1.0)
        entries = await engine.kv.entries(JOBS)
        await end_gone_trainings(engine.kv, runtime, entries, tell)
        assert told == []
        await runtime.sleep(SHORT.lease_s + 1)
        # Two look at the same moment, of which one was killed after its first write.
        await end_gone_trainings(engine.kv, runtime, entries, tell)
        await end_gone_trainings(engine.kv, runtime, entries, tell)
        ((job_id, error),) = told
        assert job_id == job.job_id
        assert f"process {job.pid} on {job.node} is gone" in error
        assert [each.job_id for each in await alive.ended()] == [job.job_id]
        # Without a loop the next one to take the slot sees to it.
        second = await dead.request("hex8_2p")
        await dead._held[second.job_id].renewals.stop(1.0)
        taken = await alive.request("hex8_2p", wait_s=60.0)
        assert [job_id for job_id, _ in told] == [job.job_id, second.job_id]
        # Who comes back is heard, but his end is not news any more, and the next one's slot is not touched.
        assert not await dead.release(second.job_id, error="the disk was full")
        assert [each.error for each in await alive.ended()][1:] == ["the disk was full"]
        assert [each.job_id for each in await alive.running()] == [taken.job_id]
        await alive.release_all()
        await engine.close()

    simulate(main())


@pytest.mark.parametrize("away", [Unavailable("the event log is away"), asyncio.CancelledError()])
def test_a_dead_trainer_that_could_not_be_told_blocks_nobody_and_is_told_by_the_next(away):
    async def main():
        engine, runtime, (dead, alive) = two_processes()
        job = await dead.request("hex8_2p")
        await dead._held[job.job_id].renewals.stop(1.0)
        await runtime.sleep(SHORT.lease_s + 1)
        told = []

        async def fail(_job):
            raise away

        async def tell(gone):
            told.append(gone.job_id)

        alive.on_gone = fail
        if isinstance(away, Unavailable):
            assert (await alive.request("hex8_2p")).reason is Refusal.LOCK_FAILED
        else:
            with pytest.raises(asyncio.CancelledError):
                await alive.request("hex8_2p")
        assert await engine.kv.entries(LEASE_PREFIX) == []
        # Its holder is heard meanwhile, and stays so.
        assert not await dead.release(job.job_id, error="the disk was full")
        alive.on_gone = tell
        taken = await alive.request("hex8_2p")
        assert isinstance(taken, TrainingJob)
        assert told == [job.job_id]
        assert [each.error for each in await alive.ended()] == ["the disk was full"]
        await alive.release_all()
        await engine.close()

    simulate(main())


def test_a_slot_whose_record_was_never_stored_is_free():
    async def main():
        engine, _, (first, second) = two_processes()

        async def fails(_kv, _job):
            raise Unavailable("the disk is full")

        first._write = fails
        assert (await first.request("hex8_2p")).reason is Refusal.LOCK_FAILED
        assert isinstance(await second.request("hex8_2p"), TrainingJob)
        await second.release_all()
        await engine.close()

    simulate(main())


def test_a_slot_with_an_unreadable_record_is_given_back_with_its_end():
    async def main():
        engine, _, (first, second) = two_processes()
        job = await first.request("hex8_2p")
        await engine.kv.put(JOBS + "hex8_2p", b"not json")
        assert await first.release(job.job_id, error="it diverged")
        assert [each.error for each in await first.ended()] == ["it diverged"]
        job = await second.request("hex8_2p")
        assert isinstance(job, TrainingJob)
        assert [each.job_id for each in await first.running()] == [job.job_id]
        await second.release_all()
        await engine.close()

    simulate(main())


WORKER = Claimant(worker="w1")


async def ordered(engine, config="hex8_2p", number=7):
    """A training of the loop, as it stands in the queue."""
    item = NewWork(id=f"{config}.train.{number:06d}", kind="train", payload={}, group=config)
    return await engine.queue.add([item])


def test_while_a_worker_trains_a_config_nobody_else_gets_its_slot():
    async def main():
        engine, _, (first, second) = two_processes()
        await ordered(engine)
        assert await first.can_train("hex8_2p") is None  # it is only ordered
        (claim,) = await engine.queue.claim(WORKER, lease_s=30.0)
        for slots in (first, second):
            for refused in (await slots.can_train("hex8_2p"), await slots.request("hex8_2p")):
                assert refused.reason is Refusal.ALREADY_RUNNING
                assert "hex8_2p.train.000007 is with worker w1" in refused.message
        assert await first.can_train("hex8_3p") is None
        await engine.queue.complete(claim.id, token=claim.token)
        assert isinstance(await second.request("hex8_2p"), TrainingJob)
        await second.release_all()
        await engine.close()

    simulate(main())


def test_no_worker_trains_beside_a_slot_and_it_goes_on_when_the_slot_is_given_back_or_runs_out():
    async def main():
        engine, _, (mine, _) = two_processes()
        await ordered(engine)
        job = await mine.request("hex8_2p")
        assert await engine.queue.claim(WORKER, lease_s=30.0, wait_s=60.0) == []
        assert mine.holds(job.job_id)
        await mine.release(job.job_id)
        (claim,) = await engine.queue.claim(WORKER, lease_s=30.0)
        await engine.queue.release(claim.id, token=claim.token)
        job = await mine.request("hex8_2p")
        await mine._held[job.job_id].renewals.stop(1.0)  # the process hangs: nobody renews
        assert [each.id for each in await engine.queue.claim(WORKER, lease_s=30.0, wait_s=60.0)] == [claim.id]
        assert not mine.holds(job.job_id)
        await engine.close()

    simulate(main())


def test_whoever_waits_for_a_worker_to_end_its_training_is_next():
    async def main():
        engine, runtime, (mine, _) = two_processes()
        await ordered(engine)
        (claim,) = await engine.queue.claim(WORKER, lease_s=60.0)
        waiting = asyncio.ensure_future(mine.request("hex8_2p", wait_s=120.0))
        await runtime.sleep(50.0)  # longer than the lease of the slot
        await engine.queue.complete(claim.id, token=claim.token)
        await ordered(engine, number=8)
        assert await engine.queue.claim(WORKER, lease_s=30.0) == []
        assert isinstance(await waiting, TrainingJob)
        await mine.release_all()
        await engine.close()

    simulate(main())


def test_trainings_of_workers_count_among_the_few_in_all():
    async def main():
        engine, _, (mine, other) = two_processes(slots_max=2)
        await ordered(engine, "hex8_3p")
        await engine.queue.claim(WORKER, lease_s=30.0)
        assert isinstance(await mine.request("hex8_2p"), TrainingJob)
        assert (await other.request("hex8_4p")).reason is Refusal.MAX_CONCURRENT_REACHED
        assert (await other.can_train("hex8_4p")).reason is Refusal.MAX_CONCURRENT_REACHED
        await mine.release_all()
        await engine.close()

    simulate(main())


def test_the_documents_functions_know_what_workers_train():
    engine = get_engine_blocking()
    run_blocking(ordered(engine))
    run_blocking(engine.queue.claim(WORKER, lease_s=30.0))
    ok, why = can_train("hex8", 2)
    assert not ok
    assert (
        why == "already_running: hex8_2p is being trained: the run's hex8_2p.train.000007 is with worker w1"
    )
    assert request_training_slot("hex8", 2) is None
    with training_slot("hex8", 2) as job_id:
        assert job_id is None
    assert get_training_status()["by_workers"] == [
        {"job_id": "hex8_2p.train.000007", "config_key": "hex8_2p", "worker": "w1"}
    ]


async def test_a_cluster_that_somebody_calls_unhealthy_refuses_no_slot():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator = wire_training_events(router)
    sick = {"healthy_nodes": 1, "node_count": 5, "reason": "4 nodes are gone"}
    await router.publish("P2P_CLUSTER_UNHEALTHY", sick, "a user")
    job = await coordinator.request("hex8_2p")
    assert isinstance(job, TrainingJob)
    assert (coordinator.get_stats()["refusals"], coordinator.get_stats()["cluster_unhealthy"]) == ({}, None)
    await coordinator.finish(job.job_id)


def test_the_documents_functions_on_the_embedded_engine():
    wire_training_events()
    assert can_train("hex8", 2) == (True, "")
    job_id = request_training_slot("hex8", 2)
    assert job_id is not None
    assert request_training_slot("hex8", 2) is None
    update_training_progress(job_id, epochs=1, best_val_loss=0.7)
    ok, why = can_train("hex8", 2)
    assert not ok
    assert why.startswith("already_running")
    assert get_training_status()["slots"][0]["config_key"] == "hex8_2p"
    assert release_training_slot(job_id, model_path="nets/a.safetensors", val_loss=0.7)
    (record,) = get_training_coordinator().get_history()
    assert (record.success, record.model_path) == (True, "nets/a.safetensors")


def test_a_block_that_raises_frees_the_slot_and_counts_as_failed():
    wire_training_events()
    with pytest.raises(ZeroDivisionError), training_slot("hex8", 2):
        raise ZeroDivisionError("no data")
    with training_slot("hex8", 2) as job_id:
        assert job_id is not None
    assert [record.success for record in get_training_coordinator().get_history()] == [True, False]
    assert get_training_coordinator().get_history()[1].error == "no data"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (("connect_four", "x"), "num_players is 'x'; it must be a whole number from 2 to 4"),
        (("hex8", 9), "num_players is 9; it must be a whole number from 2 to 4"),
        (("hex8", 1), "num_players is 1"),
        (("hex8", True), "num_players is True"),
        ((None,), "board_type is None; it must be text"),
        ((7, 2), "board_type is 7; it must be text"),
        (("hex8",), "how many play hex8?"),
        (("hex8_9p",), "'hex8_9p' is no config"),
        (("hex8_2p", 2), "'hex8_2p_2p' is no config"),
        (("chess_2p",), "'chess_2p' is no config; there are connect_four_2p, "),
        (("chess", 2), "'chess_2p' is no config"),
        (("hex8_02p",), "'hex8_02p' is no config"),
        (("",), "board_type is ''"),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused_with_the_reason(wrong, why):
    for call in (can_train, request_training_slot):
        with pytest.raises(ConfigError, match=re.escape(why)):
            call(*wrong)
    assert not has_store(), "nor is a store made for it"


def test_asking_for_a_slot_makes_no_store():
    assert can_train("hex8", 2) == (True, "")
    assert can_train("connect_four_2p") == (True, "")
    assert can_train("open_spiel:hex(board_size=3)") == (True, "")
    assert not has_store()


async def test_the_same_for_code_on_a_loop():
    job_id = await async_request_training("square8", 2)
    assert job_id is not None
    assert not (await async_can_train("square8", 2))[0]
    async with async_training_slot("square8", 3) as other:
        assert other is not None


def test_a_training_that_has_told_its_model_does_not_fail_afterwards():
    wire_training_events()
    heard = []
    get_router().subscribe("TRAINING_FAILED", heard.append, "test")

    def block():
        with training_slot("hex8", 2) as job_id:
            assert release_training_slot(job_id, model_path="nets/a.safetensors")
            raise ZeroDivisionError("after the end")

    with pytest.raises(ZeroDivisionError):
        block()
    assert not release_training_slot("hex8_2p_1_2_3", error="of another process")
    assert heard == []


def test_what_becomes_of_slots_is_known_to_whoever_looks_into_the_store():
    with training_slot("hex8", 2) as first:
        (running,) = TrainingCoordinator().get_running()
        assert (running.job_id, running.config_key) == (first, "hex8_2p")
        update_training_progress(first, epochs=3, best_val_loss=0.7)
        assert TrainingCoordinator().get_running()[0].epoch == 3
    failed = request_training_slot("hex8", 3)
    release_training_slot(failed, error="out of memory")
    others = TrainingCoordinator()
    assert not others.get_running()
    newest, oldest = others.get_history()
    assert (newest.job_id, newest.success, newest.error) == (failed, False, "out of memory")
    assert (oldest.job_id, oldest.success, oldest.loss, oldest.epoch) == (first, True, 0.7, 3)
    assert newest.ended_s >= newest.started_s > 0
    assert others.get_history(limit=1) == [newest]
    stats = others.get_stats()
    assert (stats["running"], stats["completed"], stats["failed"]) == (0, 1, 1)


def test_what_a_trainer_says_of_itself_spoils_no_answer():
    job_id = request_training_slot("hex8", 2)
    with pytest.raises(ConfigError, match="epochs is 'seven'"):
        update_training_progress(job_id, epochs="seven")
    update_training_progress(job_id, epochs=1, best_val_loss="low")
    assert [record.loss for record in get_training_coordinator().get_running()] == [None]
    release_training_slot(job_id, error=ValueError("x" * 2_000_000), val_loss="low")
    (record,) = get_training_coordinator().get_history()
    assert (record.success, record.loss, record.error[:3]) == (False, None, "xxx")


def test_the_ends_of_slots_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(requests, "ENDED_MAX", 3)

    async def main():
        engine, runtime, (mine, other) = two_processes()
        ids = []
        for _ in range(5):
            job = await mine.request("hex8_2p")
            ids.append(job.job_id)
            await runtime.sleep(1.0)
            await mine.release(job.job_id)
        assert [job.job_id for job in await other.ended()] == ids[-3:]
        await engine.close()

    simulate(main())


def test_without_a_store_nothing_is_known_and_none_is_made():
    coordinator = TrainingCoordinator()
    assert coordinator.get_running() == coordinator.get_history() == []
    stats = coordinator.get_stats()
    assert [stats[name] for name in ("running", "completed", "failed")] == [None, None, None]
    assert not has_store()
    get_engine_blocking()
    stats = coordinator.get_stats()
    assert [stats[name] for name in ("running", "completed", "failed")] == [None, None, None], "no run yet"


def test_trainings_of_the_run_are_its_facts():
    get_engine_blocking()
    run = Run("hex8_2p", "hex8_3p")
    coordinator = TrainingCoordinator(situations=run.situations)
    assert coordinator.get_stats()["completed"] == 0, "it is known that nothing was trained"
    model = trained_model(run.story)
    failing = run.story.issue("train", train_order(run.story.state, RULES, [], None, sample_steps=1))
    run.story.now_s += 5.0
    run.story.fail(failing)
    cancelled = run.story.issue("train", train_order(run.story.state, RULES, [], None, sample_steps=1))
    run.story.write(JobEnded(at_s=run.story.now_s, job_id=cancelled, cancelled=True))
    trained_model(run.stories["hex8_3p"])
    failed, done, _ = coordinator.get_history()
    assert (failed.job_id, failed.success, failed.error) == (failing, False, "out of memory")
    assert failed.ended_s - failed.started_s == 15.0, "since it was ordered: nobody knows when it began"
    assert (done.config_key, done.node_id, done.success) == ("hex8_2p", "n1", True)
    assert (done.model_path, done.loss) == (f"blob:{model}", 1.0)
    assert done.ended_s - done.started_s == 10.0
    stats = coordinator.get_stats()
    assert (stats["running"], stats["completed"], stats["failed"]) == (0, 2, 1)


def test_a_training_that_was_made_under_a_slot_and_taken_in_counts_once():
    get_engine_blocking()
    run = Run("hex8_2p")
    coordinator = TrainingCoordinator(situations=run.situations)
    with training_slot("hex8", 2) as job_id:
        release_training_slot(job_id, model_path="/nets/a.safetensors", val_loss=0.5)
    assert coordinator.get_stats()["completed"] == 1
    checked_shard(run.story)
    run.story.export()
    model = run.story.train(slot=job_id)
    (record,) = coordinator.get_history()
    assert record.model_path == f"blob:{model}"
    assert coordinator.get_stats()["completed"] == 1
    # Also when later ones have pushed it out of what is remembered of trainings.
    run.story.state.trainings.extend([EndedTraining("another", 0.0, 1.0)] * TRAININGS_MAX)
    assert coordinator.get_stats()["completed"] == 1


async def test_what_is_asked_of_it_on_the_loop_does_not_wait_for_the_store(monkeypatch):
    coordinator = wire_training_events(UnifiedEventRouter(enable_cross_process_polling=False))

    def no_store(*_):
        pytest.fail("the loop would stand still meanwhile")

    for name in ("running", "ended", "of_workers", "reported_by_workers"):
        monkeypatch.setattr(coordinator.slots, name, no_store)
    for getter in reported_getters(coordinator):
        if not getter.waits:
            getter.ask()
    coordinator.unwire()


async def held_in_a_block() -> None:
    async with async_training_slot("square8", 2):
        await asyncio.sleep(60.0)


@pytest.mark.parametrize("ask", [lambda: async_request_training("square8", 2), held_in_a_block])
async def test_a_slot_that_is_taken_for_a_cancelled_caller_is_given_back(monkeypatch, ask):
    may_go, is_taken = threading.Event(), threading.Event()

    def take(*args, **named):
        may_go.wait()
        job_id = request_training_slot(*args, **named)
        is_taken.set()
        return job_id

    monkeypatch.setattr(training_coordinator, "request_training_slot", take)
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    asking.cancel()
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(is_taken.wait)
    async with asyncio.timeout(10.0):
        while not (await async_can_train("square8", 2))[0]:
            await asyncio.sleep(0.02)


def test_a_workers_training_is_shown_for_as_long_as_the_worker_has_it():
    engine, coordinator = get_engine_blocking(), TrainingCoordinator()
    run_blocking(ordered(engine))
    assert coordinator.get_running() == [], "it is only ordered"
    (claim,) = run_blocking(engine.queue.claim(WORKER, lease_s=1.0))
    (running,) = coordinator.get_running()
    assert (running.job_id, running.config_key, running.epoch) == (claim.id, "hex8_2p", None)
    run_blocking(engine.kv.put(running_key(claim.id), msgspec.json.encode(under_way(claim.id))))
    (running,) = coordinator.get_running()
    assert (running.node_id, running.started_s, running.epoch, running.loss) == ("n1", 5.0, 7, 0.5)
    assert coordinator.get_stats()["running"] == 1
    later = ManualRuntime()
    later.advance(system_runtime().now_s() + 60.0)
    assert TrainingCoordinator(runtime=later).get_running() == [], (
        "its worker was killed, and nobody has looked at the queue since"
    )
    run_blocking(engine.queue.complete(claim.id, token=claim.token))
    assert coordinator.get_running() == []


def under_way(item_id):
    return RunningRecord(
        job_id=item_id,
        kind="train",
        config="hex8_2p",
        worker="w1",
        node="n1",
        pid=1,
        attempt=1,
        stage="train",
        done=70,
        total=100,
        rate=1.0,
        eta_s=None,
        started_s=5.0,
        at_s=6.0,
        elapsed_s=1.0,
        cpu_s=1.0,
        memory_mb=1.0,
        line="",
        extra={"epoch": 7, "train_policy": 0.375, "train_value": 0.125},
    )


async def test_whoever_waits_in_vain_for_a_slot_is_heard_of():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator, heard = wire_training_events(router), []
    router.subscribe("LOCK_TIMEOUT", lambda event: heard.append(dict(event.payload)))
    job = await coordinator.request("hex8_2p")
    assert isinstance(await coordinator.request("hex8_2p"), Refused)
    assert heard == [], "who does not wait is only refused"
    assert isinstance(await coordinator.request("hex8_2p", wait_s=0.01), Refused)
    (told,) = heard
    assert (told["lock_name"], told["timeout_seconds"]) == ("training of hex8_2p", 0.01)
    assert await coordinator.finish(job.job_id)
