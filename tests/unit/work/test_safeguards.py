"""The last gate, and the emergency stop."""

from dataclasses import replace

import msgspec
import pytest
from tasks_world import ROOMY, in_tasks_world

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.safeguards import get_emergency_stop, get_safeguards, get_task_admission
from ringrift.coordination.stability_heuristic import get_threshold_manager
from ringrift.coordination.task_coordinator import (
    can_spawn,
    check_before_spawn,
    clear_emergency_stop,
    emergency_notice,
    turn_on_emergency_stop,
)
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import Unavailable
from ringrift.work.limits import FILE_NAME, KEY, EmergencyNotice, says_out_of_memory


@pytest.mark.parametrize(
    ("reason", "oom"),
    [
        ("CUDA out of memory. Tried to allocate", True),
        ("exit 137: OOM", True),
        ("oom-killed", True),
        ("MemoryError: cannot build", True),
        ("fork: Cannot allocate memory", True),
        ("no room left in the zoom", False),
        ("the loss is not a number", False),
        ("", False),
    ],
)
def test_words_that_mean_out_of_memory(reason, oom):
    assert says_out_of_memory(reason) is oom


def test_a_job_that_ran_out_of_memory_stops_everything_for_a_while_longer_each_time(tmp_path):
    async def scenario(world):
        other = world.another_process()
        waits = []
        for _ in range(5):
            await world.say(
                "TASK_FAILED", task_id="t", task_type="train", node_id="n", error="CUDA out of memory"
            )
            await world.runtime.sleep(2)  # what was seen is a second old at most
            refused = await other.safeguards.allow("selfplay", "m")
            assert refused.check == "emergency"
            assert "ran out of memory: CUDA out of memory" in refused.reason
            waits.append(round(refused.retry_after_s + 2))
            await world.runtime.sleep(refused.retry_after_s + 2)
            assert (await other.safeguards.allow("selfplay", "m")).ok
        assert waits == [300, 600, 1200, 2400, 3600]
        await world.runtime.sleep(7 * 3600)
        await world.safeguards.failed("train", "n", "out of memory")
        assert (await world.emergency.notice()).times == 1

    in_tasks_world(scenario, tmp_path)


def test_many_failures_at_once_are_one_emergency(tmp_path):
    async def scenario(world):
        for _ in range(20):
            await world.safeguards.failed("train", "n", "out of memory")
        assert (await world.emergency.notice()).times == 1

    in_tasks_world(scenario, tmp_path)


def test_a_file_that_a_person_makes_stops_everything_until_it_is_cleared(tmp_path):
    async def scenario(world):
        (tmp_path / FILE_NAME).write_text("the lab is on fire\n")
        refused = await world.safeguards.allow("export")
        assert refused.reason == "emergency stop until it is cleared: the lab is on fire"
        await world.runtime.sleep(1e6)
        assert not (await world.safeguards.allow("export")).ok
        assert (await world.emergency.clear()).reason == "the lab is on fire"
        await world.runtime.sleep(2)
        assert (await world.safeguards.allow("export")).ok
        (tmp_path / FILE_NAME).touch()
        await world.runtime.sleep(2)
        assert "EMERGENCY_STOP is in the data folder" in (await world.safeguards.allow("export")).reason

    in_tasks_world(scenario, tmp_path)


def test_a_stop_file_that_cannot_be_read_stops_everything_too(tmp_path):
    async def scenario(world):
        (tmp_path / FILE_NAME).mkdir()
        refused = await world.safeguards.allow("export")
        assert (
            refused.reason
            == "emergency stop until it is cleared: EMERGENCY_STOP cannot be read: Is a directory"
        )
        with pytest.raises(Unavailable, match="the emergency stop stays on"):
            await world.emergency.clear()
        (tmp_path / FILE_NAME).rmdir()
        await world.runtime.sleep(2)
        assert (await world.safeguards.allow("export")).ok

    in_tasks_world(scenario, tmp_path)


def test_the_end_of_a_stop_that_was_cut_off_can_be_asked_for_again(tmp_path, monkeypatch):
    async def scenario(world):
        await world.engine.queue.add([NewWork(kind="export")])
        await world.emergency.turn_on("smoke")
        delete = world.engine.kv.delete

        async def cut_off(key, **options):
            if key == KEY:
                raise Unavailable("the store went away")
            return await delete(key, **options)

        with monkeypatch.context() as patched:
            patched.setattr(world.engine.kv, "delete", cut_off)
            with pytest.raises(Unavailable):
                await world.emergency.clear()
        assert (await world.emergency.notice()).reason == "smoke"
        await world.emergency.clear()
        assert await world.emergency.notice() is None
        assert await world.engine.queue.claim(Claimant(worker="w"), lease_s=60)

    in_tasks_world(scenario, tmp_path)


def test_tasks_of_other_machines_that_run_out_of_memory_lower_no_limit_here(tmp_path):
    async def scenario(world):
        for _ in range(20):
            await world.safeguards.failed("train", "far away", "killed: out of memory")
        assert world.admission.memory.value == 0.95

    in_tasks_world(scenario, tmp_path)


def test_one_task_that_ran_out_of_memory_lowers_the_limit_once_and_not_for_good(tmp_path):
    async def scenario(world):
        limit = world.admission.memory
        for _ in range(10):
            world.safeguards.succeeded("train", "sim")
        await world.safeguards.failed("train", "sim", "killed: out of memory")
        lowered = limit.value
        assert lowered < 0.95
        for _ in range(5):
            await world.runtime.sleep(601.0)
            world.safeguards.succeeded("train", "sim")
            assert limit.value >= lowered
        await world.runtime.sleep(3600.0)
        await world.safeguards.allow("train", "sim")
        assert limit.value == 0.95

    in_tasks_world(scenario, tmp_path)


def test_the_stop_survives_a_restart_and_reaches_other_machines(tmp_path):
    async def scenario(world):
        await world.emergency.turn_on("asked for")
        assert not (await world.another_process().safeguards.allow("export")).ok
        (tmp_path / FILE_NAME).unlink()  # another machine has another folder
        assert not (await world.another_process().safeguards.allow("export")).ok
        await world.engine.kv.put(KEY, b"damaged")
        await world.runtime.sleep(2)
        refused = await world.safeguards.allow("export")
        assert not refused.ok
        assert "cannot be read" in refused.reason

    in_tasks_world(scenario, tmp_path)


def test_failures_in_a_row_hold_the_kind_and_the_node_back_and_heal(tmp_path):
    async def scenario(world):
        for _ in range(5):
            await world.safeguards.failed("train", "bad", "no data")
        refused = await world.safeguards.allow("train", "good")
        assert (refused.check, refused.reason) == ("type_breaker", "5 training tasks failed in a row")
        assert (await world.safeguards.allow("export", "bad")).check == "node_breaker"
        assert (await world.safeguards.allow("export", "good")).ok
        assert world.coordinator.health_check().status.value == "degraded"
        await world.runtime.sleep(refused.retry_after_s + 0.1)
        assert (await world.safeguards.allow("train", "good")).ok
        world.safeguards.succeeded("train", "bad")
        assert world.safeguards.get_stats()["open_breakers"] == {}
        assert world.safeguards.get_stats()["refused"] == {"type_breaker": 1, "node_breaker": 1}

    in_tasks_world(scenario, tmp_path)


def test_a_node_that_starts_too_much_waits(tmp_path):
    async def scenario(world):
        for _ in range(30):
            world.safeguards.started("selfplay", "n")
        refused = await world.safeguards.allow("selfplay", "n")
        assert (refused.check, refused.reason) == ("node_rate", "more than 30 tasks a minute on n")
        assert 0 < refused.retry_after_s <= 2
        assert (await world.safeguards.allow("selfplay", "m")).ok
        for number in range(30):
            world.safeguards.started("selfplay", f"other{number}")
        assert (await world.safeguards.allow("selfplay", "m")).check == "rate"

    in_tasks_world(scenario, tmp_path)


def test_where_jobs_run_out_of_memory_fewer_run_beside_each_other(tmp_path):
    async def scenario(world):
        async def ended(number, error=""):
            for _ in range(number):
                event = "TASK_FAILED" if error else "TASK_COMPLETED"
                job = {"task_id": "j", "task_type": "train", "node_id": "sim", "error": error}
                await world.say(event, **{name: text for name, text in job.items() if text})

        async def verdict():
            world.admission.forget_view()
            return await world.safeguards.may_order("train", "sim")

        limit = world.admission.memory
        world.machine = replace(ROOMY, memory_percent=90)
        await world.claim("selfplay")
        await ended(19)
        assert (await verdict()).ok, "without a job that ran out of memory 95 % count, as ever"
        assert limit.value == 0.95
        await ended(1, "killed: out of memory")
        await world.emergency.clear()
        refused = await verdict()
        assert limit.value == pytest.approx(0.88)
        assert refused.check == "memory_warning"
        told = "memory 90 % used; 88 % is the limit beside other tasks, as tasks ran out of memory"
        assert refused.reason == told
        assert world.safeguards.get_stats()["memory_warning"]["value"] == limit.value
        world.machine = replace(ROOMY, memory_percent=87)
        assert (await verdict()).ok
        # It falls to a bound, and a machine is never refused its first task.
        for _ in range(8):
            await world.runtime.sleep(601.0)
            await ended(1, "killed: out of memory")
            await world.emergency.clear()
        assert limit.value == 0.6
        assert not (await verdict()).ok
        (item,) = await world.engine.queue.claimed()
        await world.engine.queue.cancel(item.id, reason="done with")
        assert (await verdict()).ok
        # Where jobs end well again it comes back.
        for _ in range(30):
            await world.runtime.sleep(601.0)
            await ended(4)
        assert limit.value == 0.95
        await world.claim("selfplay")
        assert (await verdict()).ok

    in_tasks_world(scenario, tmp_path)


def test_other_failures_leave_the_limit_of_memory_where_it_is(tmp_path):
    async def scenario(world):
        for _ in range(30):
            await world.safeguards.failed("train", "sim", "no data")
        assert world.admission.memory.value == 0.95

    in_tasks_world(scenario, tmp_path)


# --- the calls of the documents, on the real engine ---------------------------------------------------


def test_the_emergency_stop_by_hand_is_a_file_with_its_reason():
    assert emergency_notice() is None
    assert check_before_spawn("selfplay") == (True, "ok")
    turn_on_emergency_stop("maintenance")
    file = get_settings().data_dir / FILE_NAME
    assert msgspec.json.decode(file.read_bytes(), type=EmergencyNotice).reason == "maintenance"
    assert emergency_notice().reason == "maintenance"
    assert clear_emergency_stop().reason == "maintenance"
    assert (emergency_notice(), file.exists()) == (None, False)
    assert clear_emergency_stop() is None


def test_can_spawn_says_that_the_emergency_stop_is_on():
    turn_on_emergency_stop("maintenance")
    assert can_spawn("selfplay") == (False, "emergency stop until it is cleared: maintenance")


async def test_the_limit_of_memory_of_this_process_is_among_its_thresholds():
    limit = get_task_admission().memory
    assert get_threshold_manager().get("memory_warning") is limit
    for _ in range(10):
        await get_safeguards().failed("train", "", "MemoryError")
    assert get_threshold_manager().get_value("memory_warning") == pytest.approx(0.88)
    assert get_threshold_manager().get_all_stats()["memory_warning"]["changes"] == 1
    await get_emergency_stop().clear()
