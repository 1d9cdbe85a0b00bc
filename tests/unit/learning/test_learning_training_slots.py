"""Training slots: one per config, eight in all, never two holders, and every no has a reason."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from ringrift.coordination import training_coordinator
from ringrift.coordination.event_router import get_router
from ringrift.coordination.training_coordinator import (
    Refusal,
    Refused,
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
from ringrift.engine.leases import LeaseConfig
from ringrift.engine.memory import memory_engine
from ringrift.engine.opening import get_engine_blocking, has_store
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import ConfigError, LeaseLost
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.testing.simulation import SimulatedRuntime, simulate

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
        await dead._held[job.job_id].keepers.stop(1.0)  # the process hangs: nobody renews
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
        await mine._held[job.job_id].keepers.stop(1.0)  # the process hangs: nobody renews
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


async def test_an_unhealthy_cluster_gives_no_slot_until_it_is_well_or_nobody_says_so_any_more():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator = wire_training_events(router)
    sick = {"healthy_nodes": 1, "node_count": 5, "reason": "4 nodes are gone"}
    await router.publish("P2P_CLUSTER_UNHEALTHY", sick)
    refused = await coordinator.request("hex8_2p")
    assert (refused.reason, refused.message) == (Refusal.CLUSTER_UNHEALTHY, "4 nodes are gone")
    assert coordinator.get_stats()["refusals"] == {"cluster_unhealthy": 1}
    await router.publish("P2P_CLUSTER_HEALTHY", {"healthy_nodes": 5, "node_count": 5})
    assert coordinator.why_unhealthy() is None


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


async def test_a_training_whose_end_was_never_told_ends_when_its_place_is_needed():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator = wire_training_events(router)
    for number in range(training_coordinator.RUNNING_MAX + 1):
        started = {"job_id": f"job-{number}", "node_id": "n", "config_key": "hex8_2p"}
        await router.publish("TRAINING_STARTED", started)
    (ended,) = coordinator.get_history()
    assert (ended.job_id, ended.error) == ("job-0", "no end was told")
    assert ended.ended_s is not None


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


async def test_a_workers_training_is_shown_from_start_to_end():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator = wire_training_events(router)
    started = {"job_id": "hex8_2p.train.1", "node_id": "n", "config_key": "hex8_2p"}
    await router.publish("TRAINING_STARTED", started)
    (running,) = coordinator.get_running()
    assert (running.config_key, running.node_id) == ("hex8_2p", "n")
    progress = {"config_key": "hex8_2p", "job_id": "hex8_2p.train.1", "epoch": 7, "train_loss": 0.5}
    await router.publish("TRAINING_PROGRESS", progress)
    assert coordinator.get_running()[0].epoch == 7
    ended = {"config_key": "hex8_2p", "job_id": "hex8_2p.train.1", "success": True, "model_path": "blob:m"}
    for _ in range(2):
        await router.publish("TRAINING_COMPLETED", ended)
    await router.publish("TRAINING_STARTED", started)  # a late repetition of the start
    assert coordinator.get_running() == []
    assert len(coordinator.get_history()) == 1


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
