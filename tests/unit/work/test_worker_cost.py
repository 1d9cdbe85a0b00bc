"""What a job cost, as the worker hands it in."""

import pytest
from worker_world import end_well, say

from ringrift.engine.ports import WorkState
from ringrift.machine import machine_kind
from ringrift.work.worker import records


def test_the_gpu_counts_for_as_long_as_the_job_says_it_had_it(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        await here.runtime.sleep(100)
        say(child, event="progress", stage="training", done=1, cpu_s=50, gpu_s=75.5)
        await here.runtime.sleep(5)
        end_well(child, cpu_s=52, gpu_s=80.0)
        report = (await here.until(item_id, WorkState.DONE)).result
        assert (report["cpu_s"], report["gpu_s"]) == (52.0, 80.0)
        assert report["fields"] == {}
        assert report["node_s"] == 40.0  # it had one of two GPUs for 80 s, and one of four cores for less

    world(scenario, cpus=4, gpus=2)


def test_a_program_that_says_nothing_of_its_gpu_had_it_all_the_time(world):
    async def scenario(here):
        item_id = await here.add(limits={"gpu": True}, requires=frozenset({"gpu"}))
        child = await here.child()
        await here.runtime.sleep(30)
        end_well(child)
        report = (await here.until(item_id, WorkState.DONE)).result
        assert report["gpu_s"] == report["wall_s"] >= 30.0

    world(scenario, gpus=1, capabilities=frozenset({"cpu", "gpu"}))


def test_no_job_has_a_gpu_for_longer_than_it_ran(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        await here.runtime.sleep(10)
        end_well(child, gpu_s=1e9)
        report = (await here.until(item_id, WorkState.DONE)).result
        assert 10.0 <= report["gpu_s"] == report["wall_s"] < 12.0

    world(scenario, gpus=1)


def test_what_an_earlier_attempt_took_is_in_it(world):
    async def scenario(here):
        item_id = await here.add()
        first = await here.child()
        await here.runtime.sleep(20)
        say(first, event="progress", stage="training", done=1, gpu_s=15.0)
        await here.wait_a_little()
        first.exit(1)
        second = await here.child(1)
        await here.runtime.sleep(20)
        end_well(second, gpu_s=10.0)
        report = (await here.until(item_id, WorkState.DONE)).result
        assert report["gpu_s"] == 25.0

    world(scenario, gpus=1)


@pytest.mark.parametrize(("devices", "gpu_s", "named"), [(1, 5.0, False), (1, 0.0, True), (0, 5.0, True)])
def test_what_a_gpu_computed_that_the_worker_does_not_count_is_not_named_as_of_the_processor(
    world, tmp_path, monkeypatch, devices, gpu_s, named
):
    """They would be compared by bits. Where there is no GPU at all, a job cannot say that it used one."""
    for number in range(devices):
        (tmp_path / f"kfd{number}").touch()
    monkeypatch.setattr(records, "GPU_DEVICES", (str(tmp_path / "kfd*"),))

    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        await here.runtime.sleep(10)
        end_well(child, gpu_s=gpu_s)
        report = (await here.until(item_id, WorkState.DONE)).result
        assert report["machine"] == (machine_kind() if named else "")

    world(scenario, gpus=0)


@pytest.mark.parametrize(("visible", "reach"), [(None, True), ("0", True), ("", False), ("-1", False)])
def test_a_gpu_that_the_environment_hides_is_out_of_reach_of_jobs(tmp_path, monkeypatch, visible, reach):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(records, "GPU_DEVICES", (str(tmp_path / "nvidia*"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert records.has_gpu_in_reach() is reach
