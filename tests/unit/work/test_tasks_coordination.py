"""Tasks as several processes see them: admission, records, lives, orphans, states."""

import os
from dataclasses import replace

import msgspec
import pytest
from tasks_world import ROOMY, in_tasks_world

from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.errors import Unavailable
from ringrift.health.run_status import STATUS_KEY
from ringrift.learning.requests import ALL, Pauses
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.work.admission import FORMER_STATE_KEY, limits_for_machine
from ringrift.work.limits import CoordinatorState, Pause, StateNotice, TaskLimits
from ringrift.work.tasks import TaskType, work_queue_status
from ringrift.work.worker.records import WorkerRecord, worker_key


def test_what_one_process_registers_counts_in_all(tmp_path):
    async def scenario(world):
        other = world.another_process()
        assert (await other.coordinator.verdict("training", "n")).ok
        await world.coordinator.register("t1", "training", "n", pid=7, config_key="hex8_2p")
        await world.runtime.sleep(2)
        refused = await other.coordinator.verdict(TaskType.TRAINING, "n")
        assert refused.reason == "1 of 1 training tasks run on n"
        assert (await other.coordinator.verdict("training", "m")).ok
        assert (await world.lifecycle.stats())["by_node"] == {"n": 1}
        assert world.heard("TASK_SPAWNED") == [
            {"task_id": "t1", "task_type": "training", "node_id": "n", "config_key": "hex8_2p", "pid": 7}
        ]
        await other.say("TASK_COMPLETED", task_id="t1", task_type="training", node_id="n")
        await world.runtime.sleep(2)
        assert (await world.coordinator.verdict("training", "n")).ok

    in_tasks_world(scenario, tmp_path)


def test_real_claims_count_against_the_limits_without_being_registered(tmp_path):
    async def scenario(world):
        record = WorkerRecord(
            name="box-w", node="box", pid=1, slots=1, busy=1, kinds=None, capabilities=(), cpus=1, gpus=0,
            memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=0.0,
        )  # fmt: skip
        await world.engine.kv.put(worker_key("box-w"), msgspec.json.encode(record))
        (claim,) = await world.claim("train", worker="box-w")
        refused = await world.coordinator.verdict("train", "box")
        assert refused.reason == "1 of 1 training tasks run on box"
        await world.engine.queue.complete(claim.id, token=claim.token)
        await world.runtime.sleep(2)
        assert (await world.coordinator.verdict("train", "box")).ok

    in_tasks_world(scenario, tmp_path)


def test_a_workers_job_is_counted_once_and_leaves_no_record(tmp_path):
    async def scenario(world):
        (claim,) = await world.claim("selfplay")
        about = {"task_id": claim.id, "task_type": "selfplay", "node_id": "sim"}
        await world.say("TASK_SPAWNED", **about)
        assert (await world.lifecycle.stats())["active"] == 1
        assert await world.admission.registry.registered() == []
        await world.engine.queue.complete(claim.id, token=claim.token, result={"wall_s": 9.0})
        await world.say("TASK_COMPLETED", **about, duration_seconds=9.0)
        for process in (world, world.another_process()):
            stats = await process.lifecycle.stats()
            assert (stats["active"], stats["completed"], stats["mean_duration_seconds"]) == (0, 1, 9.0)

    in_tasks_world(scenario, tmp_path)


def test_an_echo_from_another_process_brings_no_ended_task_back(tmp_path):
    async def scenario(world):
        other = world.another_process()
        await world.coordinator.register("t", "export", "n")
        await world.admission.registry.end("t")
        late = {"task_id": "t", "task_type": "export", "node_id": "n"}
        await other.router.publish("TASK_SPAWNED", late, "global_task_coordinator")
        assert await other.admission.registry.running() == []

    in_tasks_world(scenario, tmp_path)


def test_a_node_rests_a_second_and_a_burst_ends(tmp_path):
    async def scenario(world):
        for number in range(5):
            assert (await world.coordinator.verdict("selfplay", f"n{number}")).ok
            await world.coordinator.register(f"t{number}", "selfplay", f"n{number}")
        refused = await world.coordinator.verdict("selfplay", "n9")
        assert refused.reason == "more than 30 self-play tasks a minute"
        assert refused.retry_after_s == pytest.approx(2.0)
        assert (await world.coordinator.verdict("export", "n9")).ok
        await world.runtime.sleep(2.01)
        assert (await world.coordinator.verdict("selfplay", "n9")).ok
        await world.coordinator.register("t9", "export", "n9")
        assert "began a task" in (await world.coordinator.verdict("export", "n9")).reason

    in_tasks_world(scenario, tmp_path)


def test_silent_tasks_are_told_once_do_not_count_and_may_come_back(tmp_path):
    async def scenario(world):
        await world.coordinator.register("t", "training", "n")
        await world.runtime.sleep(299)
        assert await world.lifecycle.check_orphans() == []
        await world.runtime.sleep(2)
        assert [task.task_id for task in await world.lifecycle.check_orphans()] == ["t"]
        assert await world.lifecycle.check_orphans() == []
        (told,) = world.heard("TASK_ORPHANED")
        assert told["seconds_since_heartbeat"] == pytest.approx(301)
        assert world.lifecycle.health_check().status.value == "degraded"
        assert (await world.coordinator.verdict("training", "n")).ok
        await world.say("TASK_HEARTBEAT", task_id="t", node_id="n")
        await world.runtime.sleep(2)
        assert not (await world.coordinator.verdict("training", "n")).ok
        assert world.lifecycle.health_check().status.value == "running"
        await world.runtime.sleep(3100)
        await world.lifecycle.check_orphans()
        assert [told["task_id"] for told in world.heard("TASK_ABANDONED")] == ["t"]
        assert await world.admission.registry.registered() == []

    in_tasks_world(scenario, tmp_path)


def test_a_silent_task_that_another_process_abandoned_is_missed_no_longer(tmp_path):
    async def scenario(world):
        await world.coordinator.register("t", "training", "n")
        await world.runtime.sleep(301)
        await world.lifecycle.check_orphans()
        assert world.lifecycle.health_check().status.value == "degraded"
        await world.admission.registry.end("t", "abandoned")
        await world.lifecycle.check_orphans()
        assert world.lifecycle.health_check().status.value == "running"

    in_tasks_world(scenario, tmp_path)


def test_a_task_of_a_dead_process_on_this_machine_is_given_up_at_once(tmp_path):
    async def scenario(world):
        await world.coordinator.register("mine", "export", "sim", pid=os.getpid())
        await world.coordinator.register("dead", "export", "sim", pid=2**22 + 1)
        await world.coordinator.register("elsewhere", "export", "far", pid=2**22 + 1)
        await world.lifecycle.check_orphans()
        assert [told["task_id"] for told in world.heard("TASK_ABANDONED")] == ["dead"]
        assert {task.task_id for task in await world.admission.registry.registered()} == {
            "mine",
            "elsewhere",
        }

    in_tasks_world(scenario, tmp_path)


def test_a_lost_node_orphans_its_tasks_and_gets_nothing_until_it_is_back(tmp_path):
    async def scenario(world):
        await world.coordinator.register("a", "export", "n")
        await world.coordinator.register("b", "export", "m")
        await world.say("HOST_OFFLINE", node_id="n", reason="unplugged")
        assert [told["task_id"] for told in world.heard("TASK_ORPHANED")] == ["a"]
        assert (await world.lifecycle.stats())["orphaned"] == 1
        await world.runtime.sleep(2)
        assert (await world.coordinator.verdict("export", "n")).reason == "n is offline: unplugged"
        assert (await world.coordinator.verdict("export", "m")).ok
        await world.say("NODE_RECOVERED", node_id="n")
        assert (await world.coordinator.verdict("export", "n")).ok
        await world.say("HOST_OFFLINE", node_id="n", reason="again")
        await world.say("HOST_ONLINE", node_id="n")
        assert (await world.coordinator.verdict("export", "n")).ok

    in_tasks_world(scenario, tmp_path)


def test_this_node_takes_tasks_whoever_says_that_it_is_gone(tmp_path):
    async def scenario(world):
        here = world.runtime.hostname
        await world.coordinator.register("a", "export", here)
        await world.say("HOST_OFFLINE", node_id=here, reason="hearsay")
        assert world.heard("TASK_ORPHANED") == []
        await world.runtime.sleep(2)
        assert (await world.coordinator.verdict("export", here)).ok

    in_tasks_world(scenario, tmp_path)


def test_every_process_knows_how_registered_tasks_ended(tmp_path):
    async def scenario(world):
        for number in range(9):
            event = ("TASK_COMPLETED", "TASK_FAILED", "TASK_CANCELLED")[number % 3]
            extra = {"TASK_FAILED": {"error": "bad"}, "TASK_CANCELLED": {"reason": "no"}}.get(event, {})
            await world.coordinator.register(f"t{number}", "export", "n")
            await world.runtime.sleep(2)
            about = {"task_id": f"t{number}", "task_type": "export", "node_id": "n"}
            await world.say(event, **about, **extra)
            await world.say(event, **about, **extra)  # again, which changes nothing
        await world.say("TASK_COMPLETED", task_id="never registered", task_type="export", node_id="n")
        for process in (world, world.another_process()):
            stats = await process.lifecycle.stats()
            assert (stats["completed"], stats["failed"], stats["cancelled"]) == (3, 3, 3)
            assert (stats["spawned"], stats["success_rate"]) == (9, 0.5)
            assert stats["mean_duration_seconds"] == pytest.approx(2.0)

    in_tasks_world(scenario, tmp_path)


def test_the_jobs_that_ended_last_are_told_newest_first(tmp_path):
    async def scenario(world):
        done, dead = await world.claim("export", number=2)
        await world.engine.queue.complete(done.id, token=done.token, result={"wall_s": 3.0, "node": "n"})
        await world.engine.queue.fail(dead.id, token=dead.token, error="bad", final=True)
        newest, before = await world.another_process().lifecycle.ended()
        assert (newest.task_id, newest.status.value, newest.error) == (dead.id, "failed", "bad")
        assert (before.task_id, before.node, before.duration_s) == (done.id, "n", 3.0)

    in_tasks_world(scenario, tmp_path)


def test_states_hold_for_all_processes_and_end_by_themselves(tmp_path):
    async def scenario(world):
        other = world.another_process()
        await world.coordinator.set_state(CoordinatorState.PAUSED, "lunch", for_s=60)
        refused = await other.coordinator.verdict("export", "n")
        assert (refused.reason, refused.retry_after_s) == (
            "task coordination is paused: lunch",
            pytest.approx(60),
        )
        await world.runtime.sleep(61)
        assert (await other.coordinator.verdict("export", "n")).ok
        await world.coordinator.set_state(CoordinatorState.DRAINING, "closing")
        assert not (await world.coordinator.verdict("export", "n")).ok
        await world.coordinator.set_state(CoordinatorState.EMERGENCY, "fire")
        await other.runtime.sleep(2)
        assert "fire" in (await other.coordinator.verdict("export", "n")).reason
        assert (await other.admission.state()).state is CoordinatorState.EMERGENCY
        await other.coordinator.set_state(CoordinatorState.RUNNING)
        await world.runtime.sleep(2)
        assert (await world.coordinator.verdict("export", "n")).ok

    in_tasks_world(scenario, tmp_path)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (CoordinatorState.PAUSED, "lunch"),
        (CoordinatorState.DRAINING, "lunch"),
        (CoordinatorState.EMERGENCY, "emergency stop: lunch"),
    ],
)
def test_what_waits_in_the_queue_is_held_and_shown_as_paused_until_it_may_go_on(tmp_path, state, why):
    async def scenario(world):
        kv, claimant = world.engine.kv, Claimant(worker="w")
        await world.engine.queue.add([NewWork(kind="export", group="hex8_2p"), NewWork(kind="tidy")])
        await world.coordinator.set_state(state, "lunch")
        assert await world.engine.queue.claim(claimant, lease_s=60) == []
        assert (await Pauses(kv).read()).why_paused("hex8_2p") == why
        await world.another_process().coordinator.set_state(CoordinatorState.RUNNING)
        assert (await Pauses(kv).read()).why_paused("hex8_2p") is None
        assert len(await world.engine.queue.claim(claimant, lease_s=60, limit=9)) == 2

    in_tasks_world(scenario, tmp_path)


def test_a_pause_for_a_time_lets_the_queue_go_on_by_itself(tmp_path):
    async def scenario(world):
        await world.engine.queue.add([NewWork(kind="export")])
        await world.coordinator.set_state(CoordinatorState.PAUSED, "lunch", for_s=60)
        since_s = world.runtime.now_s()
        assert await world.engine.queue.claim(Claimant(worker="w"), lease_s=60, wait_s=600)
        assert world.runtime.now_s() - since_s == pytest.approx(60, abs=5)

    in_tasks_world(scenario, tmp_path)


def test_the_end_of_a_pause_ends_no_emergency_stop(tmp_path):
    async def scenario(world):
        await world.engine.queue.add([NewWork(kind="export")])
        await world.coordinator.set_state(CoordinatorState.PAUSED, "lunch")
        await world.emergency.turn_on("fire")
        assert await Pauses(world.engine.kv).end_all() == ["*tasks"]
        assert await world.engine.queue.claim(Claimant(worker="w"), lease_s=60) == []
        await world.emergency.clear()
        assert await world.engine.queue.claim(Claimant(worker="w"), lease_s=60)

    in_tasks_world(scenario, tmp_path)


def test_a_pause_of_a_program_neither_shortens_nor_ends_that_of_a_person(tmp_path):
    async def scenario(world):
        kv, queue = world.engine.kv, world.engine.queue
        await queue.add([NewWork(kind="export")])
        await Pauses(kv).set(ALL, Pause(reason="the machine is needed", by="anna"))
        await world.coordinator.set_state(CoordinatorState.PAUSED, "lunch", for_s=60)
        await world.runtime.sleep(100)
        await world.coordinator.set_state(CoordinatorState.RUNNING)
        assert await queue.claim(Claimant(worker="w"), lease_s=60) == []
        assert (await world.admission.state()).reason == "the machine is needed"
        await Pauses(kv).end_all()
        assert await queue.claim(Claimant(worker="w"), lease_s=60)

    in_tasks_world(scenario, tmp_path)


def test_a_pause_that_an_earlier_version_stored_holds_on(tmp_path, monkeypatch):
    async def away(key):
        raise Unavailable("the store is away")

    async def scenario(world):
        former = StateNotice(state=CoordinatorState.DRAINING, reason="closing", since_s=1.0)
        await world.engine.kv.put(FORMER_STATE_KEY, msgspec.json.encode(former))
        await world.engine.queue.add([NewWork(kind="export")])
        with monkeypatch.context() as patched:
            patched.setattr(world.engine.kv, "get", away)
            with pytest.raises(Unavailable):
                await world.safeguards.may_order("export")
        assert "draining: closing" in (await world.safeguards.may_order("export")).reason
        assert await world.engine.queue.claim(Claimant(worker="w"), lease_s=60) == []
        assert await world.engine.kv.get(FORMER_STATE_KEY) is None

    in_tasks_world(scenario, tmp_path)


def test_a_full_machine_halts_and_goes_on_at_nine_tenths_of_the_limit(tmp_path):
    async def scenario(world):
        async def at_memory(percent):
            world.machine = replace(ROOMY, memory_percent=percent)
            await world.runtime.sleep(2)
            return await world.coordinator.verdict("export", "sim")

        assert (await at_memory(94)).ok
        assert not (await at_memory(96)).ok
        assert (await at_memory(90)).reason == "task coordination is paused: memory 96 % used"
        assert (await at_memory(85)).ok

    in_tasks_world(scenario, tmp_path)


def test_a_reserved_node_is_kept_for_its_purpose_until_its_time(tmp_path):
    async def scenario(world):
        registry = world.admission.registry
        assert await registry.reserve("n", purpose="training", for_s=100)
        assert not await registry.reserve("n", purpose="sync", for_s=100)
        assert (await world.coordinator.verdict("export", "n")).reason == "n is reserved for training"
        assert (await world.coordinator.verdict("training", "n")).ok
        await world.runtime.sleep(101)
        assert (await world.coordinator.verdict("export", "n")).ok

    in_tasks_world(scenario, tmp_path)


def test_too_much_untrained_data_stops_self_play_only(tmp_path):
    async def scenario(world):
        run = idle_run(configs={"c": idle_config(rows=600_000)})
        await world.engine.kv.put(STATUS_KEY, msgspec.json.encode(run))
        assert "backpressure" in (await world.coordinator.verdict("selfplay", "n")).reason
        assert (await world.coordinator.verdict("train", "n")).ok

    in_tasks_world(scenario, tmp_path)


def test_cancelling_a_task_cancels_its_claim_in_the_queue(tmp_path):
    async def scenario(world):
        (claim,) = await world.claim("export")
        assert await world.admission.registry.cancel_claim(claim.id, reason="asked")
        assert (await world.engine.queue.get(claim.id)).state is WorkState.CANCELLED
        assert not await world.admission.registry.cancel_claim("no such task", reason="asked")

    in_tasks_world(scenario, tmp_path)


def test_a_machine_with_many_cores_may_use_them(tmp_path):
    async def scenario(world):
        for number in range(64):
            for gate in (world.coordinator.verdict, world.safeguards.allow):
                assert (await gate("selfplay", f"n{number % 20}")).ok, number
            await world.runtime.sleep(1)  # a job of a minute on every core
            await world.claim("selfplay", worker="big")
            world.safeguards.started("selfplay", "big")
        assert not (await world.safeguards.allow("selfplay", "big")).ok

    in_tasks_world(scenario, tmp_path, limits=limits_for_machine(64))


def test_the_usual_machine_has_the_documented_limits():
    assert limits_for_machine(2) == replace(TaskLimits(), node_burst=30.0)
    assert limits_for_machine(2, spawns_per_minute=600).node_per_minute == 300


def test_the_work_queue_in_the_words_of_the_documents(tmp_path):
    async def scenario(world):
        done, dead = await world.claim("export", number=2)
        await world.engine.queue.complete(done.id, token=done.token)
        await world.engine.queue.fail(dead.id, token=dead.token, error="bad", final=True)
        await world.claim("train", worker="w")
        await world.engine.queue.add([NewWork(kind="selfplay", priority=n) for n in range(12)])
        reply = await work_queue_status(world.engine)
        assert reply["total_items"] == 15
        assert reply["by_status"] == {"completed": 1, "failed": 1, "running": 1, "pending": 12}
        assert reply["by_type"] == {"export": 2, "train": 1, "selfplay": 12}
        assert [item["priority"] for item in reply["pending"]] == list(range(11, 1, -1))
        assert [(item["work_type"], item["claimed_by"]) for item in reply["running"]] == [("train", "w")]
        assert reply["stats"] == {
            "total_added": 15,
            "total_completed": 1,
            "total_failed": 1,
            "total_timeout": 0,
        }

    in_tasks_world(scenario, tmp_path)


def test_a_pause_holds_the_safeguards_too(tmp_path):
    async def scenario(world):
        await world.coordinator.set_state(CoordinatorState.PAUSED, "lunch")
        assert (await world.safeguards.allow("export")).reason == "task coordination is paused: lunch"

    in_tasks_world(scenario, tmp_path)
