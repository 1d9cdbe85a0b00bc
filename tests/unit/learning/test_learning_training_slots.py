"""Training slots: one per config, eight in all, never two holders, and every no has a reason."""

from __future__ import annotations

import pytest

from ringrift.engine.leases import LeaseConfig
from ringrift.engine.memory import memory_engine
from ringrift.errors import LeaseLost
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.training import (
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
from ringrift.testing.simulation import SimulatedRuntime, simulate

SHORT = LeaseConfig(lease_s=9.0, renew_s=1.0)


def two_processes(slots_max=8):
    runtime = SimulatedRuntime()
    engine = memory_engine(runtime)

    async def kv():
        return engine.kv

    return (
        engine,
        runtime,
        [TrainingSlots(kv, runtime=runtime, slots_max=slots_max, config=SHORT) for _ in "ab"],
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
        for keeper in dead._held[job.job_id].keepers:
            keeper.cancel()  # the process hangs: nobody renews
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


async def test_the_same_for_code_on_a_loop():
    job_id = await async_request_training("square8", 2)
    assert job_id is not None
    assert not (await async_can_train("square8", 2))[0]
    async with async_training_slot("square8", 3) as other:
        assert other is not None


async def test_a_workers_training_is_shown_from_start_to_end():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    coordinator = wire_training_events(router)
    started = {"task_id": "hex8_2p.train.1", "task_type": "train", "node_id": "n", "config_key": "hex8_2p"}
    await router.publish("TASK_SPAWNED", started)
    (running,) = coordinator.get_running()
    assert (running.config_key, running.node_id) == ("hex8_2p", "n")
    progress = {"config_key": "hex8_2p", "job_id": "hex8_2p.train.1", "epoch": 7, "train_loss": 0.5}
    await router.publish("TRAINING_PROGRESS", progress)
    assert coordinator.get_running()[0].epoch == 7
    ended = {"config_key": "hex8_2p", "job_id": "hex8_2p.train.1", "success": True, "model_path": "blob:m"}
    for _ in range(2):
        await router.publish("TRAINING_COMPLETED", ended)
    await router.publish("TASK_SPAWNED", started)  # a late repetition of the start
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
