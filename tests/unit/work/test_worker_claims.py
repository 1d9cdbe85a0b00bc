"""A worker's promises in simulated time: leases, fencing, limits, stopping, and what it tells."""

import errno
import os
import signal

import msgspec
import pytest
from worker_world import end_well, say

from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.errors import Unavailable
from ringrift.work.job.folder import JobFolder, damaged_inputs
from ringrift.work.job.protocol import SEALED_JOB, read_sealed_job
from ringrift.work.worker.records import live_workers, running_jobs

DONE, DEAD, READY, CLAIMED = WorkState.DONE, WorkState.DEAD, WorkState.READY, WorkState.CLAIMED


def test_a_job_is_done_and_its_artifacts_are_in_the_blobs(world):
    async def scenario(here):
        content = await here.engine.blobs.put_bytes(b"weights")
        item_id = await here.add(inputs={"champion.safetensors": content})
        child = await here.child()
        command = here.runtime.children[0][0]
        assert list(command.argv[1:]) == ["-m", "ringrift.jobs", "selfplay", "--params", "-"]
        folder = here.folders.of(item_id)
        assert msgspec.json.decode(command.input.read_bytes()) == {"out": str(folder.out)}
        assert (folder.inputs / "champion.safetensors").read_bytes() == b"weights"
        (folder.out / "a.db").write_bytes(b"games")
        artifact = {"path": str(folder.out / "a.db"), "artifact": "shard", "counts": {"games": 3}}
        end_well(child, artifacts=[artifact], games=3)
        done = await here.until(item_id, DONE)
        taken, record = done.result["artifacts"]
        assert record["kind"] == SEALED_JOB
        assert (taken["name"], taken["kind"], taken["counts"]) == ("a.db", "shard", {"games": 3})
        assert (await here.engine.blobs.open(taken["digest"])).read() == b"games"
        assert done.result["fields"] == {"games": 3}
        assert (done.result["worker"], done.result["node"], done.result["status"]) == ("w1", "node", "done")
        while folder.path.exists():
            await here.wait_a_little()
        await here.runtime.sleep(1)
        assert here.events() == [
            *("WORK_CLAIMED", "WORK_STARTED", "TASK_SPAWNED"),
            *("WORK_COMPLETED", "TASK_COMPLETED"),
        ]

    world(scenario)


def test_the_lease_is_renewed_for_as_long_as_the_job_runs(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        for _ in range(100):
            await here.runtime.sleep(10)
            say(child, event="progress", stage="playing", done=1)
            assert (await here.item(item_id)).state is CLAIMED
        end_well(child)
        assert (await here.until(item_id, DONE)).attempts == 1

    world(scenario, lease_s=30.0)


def test_a_cancelled_job_is_killed_and_its_folder_goes(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        (here.folders.of(item_id).out / "half").write_text("x")
        await here.engine.queue.cancel(item_id, reason="not wanted")
        assert await child.wait() == -signal.SIGKILL
        assert child.signals == [signal.SIGKILL]  # no grace for what does not count any more
        await here.runtime.sleep(2)
        assert not here.folders.of(item_id).path.exists()
        assert (await here.item(item_id)).state is WorkState.CANCELLED

    world(scenario)


def test_what_is_handed_in_after_the_lease_was_lost_does_not_count(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        queue, renew = here.engine.queue, here.engine.queue.renew

        async def too_late(*args, **kwargs):
            """This worker is held up until another has the item."""
            await here.runtime.sleep(60)
            return await renew(*args, **kwargs)

        queue.renew = too_late
        await here.runtime.sleep(35)
        (other,) = await queue.claim(Claimant(worker="other"), lease_s=1000)
        assert other.id == item_id
        end_well(child)
        while not here.folders.of(item_id).read_record() or "TASK_ABANDONED" not in here.events():
            await here.runtime.sleep(1)
        assert (await here.item(item_id)).holder == "other"
        await queue.complete(item_id, token=other.token, result={"by": "other"})
        queue.renew = renew

    world(scenario)


def test_a_result_is_handed_in_although_the_engine_was_away(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        queue, complete, refusals = here.engine.queue, here.engine.queue.complete, []

        async def away(*args, **kwargs):
            if len(refusals) < 20:
                refusals.append(1)
                raise Unavailable("the database is locked")
            return await complete(*args, **kwargs)

        queue.complete = away
        end_well(child, games=1)
        assert (await here.until(item_id, DONE)).attempts == 1
        assert len(refusals) == 20

    world(scenario)


def test_a_worker_that_cannot_renew_ends_its_job_before_another_begins_it(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        begun_s = here.runtime.monotonic_s()

        async def away(*args, **kwargs):
            raise Unavailable("the database is locked")

        here.engine.queue.renew = away
        assert await child.wait() == -signal.SIGKILL
        assert 20 < here.runtime.monotonic_s() - begun_s < 29
        del here.engine.queue.renew
        end_well(await here.child(1))
        assert (await here.until(item_id, DONE)).attempts == 2

    world(scenario, lease_s=30.0)


def test_a_failed_attempt_is_tried_again_where_it_left_off(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        (here.folders.of(item_id).out / "half").write_text("x")
        child.exit(1)
        failed = await here.until(item_id, READY)
        assert "exited with code 1" in failed.error
        again = await here.child(1)
        assert (here.folders.of(item_id).out / "half").read_text() == "x"
        end_well(again)
        assert (await here.until(item_id, DONE)).attempts == 2
        assert "WORK_RETRY" in here.events()

    world(scenario)


def test_wrong_input_is_never_tried_again(world):
    async def scenario(here):
        item_id = await here.add(attempts_max=5)
        say(await here.child(), event="result", status="wrong_input", error="no such board")
        (await here.child()).exit(2)
        dead = await here.until(item_id, DEAD)
        assert (dead.attempts, dead.error) == (1, "the job exited with code 2; no such board")
        await here.runtime.sleep(1)
        assert "WORK_FAILED" in here.events()

    world(scenario)


def test_an_order_that_is_none_dies_without_a_process(world):
    async def scenario(here):
        (item_id,) = await here.engine.queue.add([NewWork(kind="selfplay", payload={"games": 3})])
        assert "no job order" in (await here.until(item_id, DEAD)).error
        assert here.runtime.children == []

    world(scenario)


def test_a_missing_input_is_waited_for(world):
    async def scenario(here):
        digest = await here.engine.blobs.put_bytes(b"late")
        await here.engine.blobs.delete(digest)
        item_id = await here.add(inputs={"x": digest})
        waiting = await here.until(item_id, READY)
        while waiting.error is None:
            await here.runtime.sleep(0.1)
            waiting = await here.item(item_id)
        assert "is not here" in waiting.error
        await here.engine.blobs.put_bytes(b"late")
        end_well(await here.child())
        await here.until(item_id, DONE)

    world(scenario)


def test_a_silent_job_is_asked_to_end_then_killed(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        begun_s = here.runtime.monotonic_s()
        assert await child.wait() == -signal.SIGKILL
        assert 130 <= here.runtime.monotonic_s() - begun_s <= 135  # 120 s of silence, 10 s of grace
        assert child.signals == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]
        failed = await here.until(item_id, READY)
        assert "said nothing for 120 s" in failed.error

    world(scenario)


def test_a_job_that_only_beats_is_stuck(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        while not child.signals:
            say(child, event="heartbeat", stage="playing", done=5, idle_s=1.0)
            await here.runtime.sleep(10)
        assert "did nothing" in (await here.until(item_id, READY)).error

    world(scenario)


def test_a_job_has_the_time_that_its_order_gives(world):
    async def scenario(here):
        item_id = await here.add(limits={"timeout_s": 45.0})
        child = await here.child()
        while not child.signals:
            say(child, event="progress", stage="playing", done=here.runtime.monotonic_s())
            await here.runtime.sleep(5)
        child.exit(3)
        assert "ran longer than 45 s" in (await here.until(item_id, READY)).error
        await here.runtime.sleep(1)
        assert "WORK_TIMEOUT" in here.events()

    world(scenario)


def test_stopping_lets_jobs_seal_and_gives_the_items_back(world):
    async def scenario(here):
        ids = [await here.add() for _ in range(3)]
        first, second = await here.child(0), await here.child(1)
        await here.runtime.sleep(1)
        here.stop.set()
        await here.runtime.sleep(1)
        assert first.signals[0] is second.signals[0] is signal.SIGTERM
        first.exit(3)
        await here.runtime.sleep(20)  # the second does not hear: killed after the grace period
        assert second.signals[-1] is signal.SIGKILL
        for item_id in ids:
            item = await here.item(item_id)
            assert (item.state, item.attempts) == (READY, 0)
        assert len(here.runtime.children) == 2
        assert await live_workers(here.engine.kv) == []

    world(scenario, slots=2)


def test_a_job_that_keeps_stopping_by_itself_is_given_up(world):
    async def scenario(here):
        item_id = await here.add(attempts_max=3)
        for number in range(3):
            (await here.child(number)).exit(3)
        assert "did not ask" in (await here.until(item_id, DEAD)).error

    world(scenario)


def test_how_long_a_job_took_to_start_is_in_the_report(world):
    async def scenario(here):
        item_id = await here.add("train")
        child = await here.child()
        await here.runtime.sleep(20)
        say(child, event="progress", stage="reading", done=0, total=1)
        await here.runtime.sleep(10)
        say(child, event="progress", stage="training", done=0, total=100)
        await here.runtime.sleep(50)
        say(child, event="progress", stage="training", done=100, total=100)
        end_well(child)
        assert (await here.until(item_id, DONE)).result["start_s"] == pytest.approx(30, abs=2)
        item_id = await here.add("train")
        end_well(await here.child(1))
        assert (await here.until(item_id, DONE)).result["start_s"] is None

    world(scenario)


def test_what_earlier_attempts_took_is_in_the_report(world):
    async def scenario(here):
        item_id = await here.add()
        first = await here.child()
        await here.runtime.sleep(100)
        first.exit(1)
        second = await here.child(1)
        await here.runtime.sleep(50)
        end_well(second)
        done = await here.until(item_id, DONE)
        assert done.result["wall_s"] == pytest.approx(150, abs=2)

    world(scenario)


def test_a_folder_that_cannot_be_written_does_not_end_the_worker(world, monkeypatch):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()

        def disk_is_full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(JobFolder, "write_record", disk_is_full)
            child.exit(1)
            await here.until(item_id, READY)
        end_well(await here.child(1))
        await here.until(item_id, DONE)

    world(scenario)


def test_the_record_of_a_worker_says_what_is_free(world):
    async def scenario(here):
        await here.runtime.sleep(1)
        (record,) = await live_workers(here.engine.kv)
        assert (record.name, record.slots, record.busy, record.free) == ("w1", 2, 0, 2)
        assert record.kinds == ("selfplay", "train")
        assert "cpu" in record.capabilities
        item_id = await here.add()
        child = await here.child()
        await here.runtime.sleep(1.5)
        (record,) = await live_workers(here.engine.kv)
        assert (record.busy, record.free, record.jobs) == (1, 1, (item_id,))
        other = await here.add("export")
        await here.runtime.sleep(30)
        assert (await here.item(other)).state is READY  # not one of its kinds
        assert len(await live_workers(here.engine.kv)) == 1  # kept alive
        end_well(child)
        await here.until(item_id, DONE)

    world(scenario, slots=2, kinds=frozenset({"selfplay", "train"}))


def test_progress_is_told_at_most_every_two_seconds(world):
    async def scenario(here):
        item_id = await here.add("train")
        child = await here.child()
        writes, put = [], here.engine.kv.put

        async def counted(key, value, **options):
            writes.append(key)
            return await put(key, value, **options)

        here.engine.kv.put = counted
        for step in range(400):
            say(child, event="progress", stage="training", done=step, total=400, rate=20.0, loss=1.0)
            await here.runtime.sleep(0.1)
        (record,) = await running_jobs(here.engine.kv)
        assert (record.job_id, record.kind, record.config, record.stage) == (
            item_id,
            "train",
            "c",
            "training",
        )
        assert record.total == 400
        assert record.done > 370
        assert (record.worker, record.attempt, record.extra) == ("w1", 1, {"loss": 1.0})
        assert 17 <= writes.count(f"jobs/running/{item_id}") <= 21
        assert here.events().count("TASK_HEARTBEAT") == here.events().count("TRAINING_PROGRESS") == 3
        end_well(child)
        await here.until(item_id, DONE)
        await here.runtime.sleep(1)
        assert await running_jobs(here.engine.kv) == []

    world(scenario)


def test_an_artifact_that_changed_after_it_was_sealed_is_refused(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        path = here.folders.of(item_id).out / "a.db"
        path.write_bytes(b"changed")
        end_well(child, artifacts=[{"path": str(path), "sha256": "0" * 64}])
        assert "digest" in (await here.until(item_id, READY)).error

    world(scenario)


def test_a_result_that_the_queue_cannot_hold_becomes_an_artifact(world):
    async def scenario(here):
        item_id = await here.add()
        end_well(await here.child(), games=3, found=["x" * 100] * 20_000)
        done = await here.until(item_id, DONE)
        assert done.result["fields"] == {"games": 3}
        taken, record = done.result["artifacts"]
        assert record["kind"] == SEALED_JOB
        whole = msgspec.json.decode((await here.engine.blobs.open(taken["digest"])).read())
        assert (taken["kind"], len(whole["found"])) == ("result", 20_000)

    world(scenario)


def test_durations_are_measured(world):
    async def scenario(here):
        for _ in range(3):
            item_id = await here.add()
            child = await here.child(len(here.runtime.children))
            for _ in range(4):
                await here.runtime.sleep(100)
                say(child, event="progress", stage="playing", done=here.runtime.monotonic_s())
            end_well(child)
            await here.until(item_id, DONE)
        item_id = await here.add()
        child, begun_s = await here.child(3), here.runtime.monotonic_s()
        while not child.signals:
            say(child, event="progress", stage="playing", done=here.runtime.monotonic_s())
            await here.runtime.sleep(10)
        assert 1150 < here.runtime.monotonic_s() - begun_s < 1300  # three times what it took before

    world(scenario)


def test_a_damaged_input_is_named_and_written_down_and_no_job_sees_it(world):
    async def scenario(here):
        digest = await here.engine.blobs.put_bytes(b"weights")
        here.store.blobs.content[digest] = b"waights"
        item_id = await here.add(inputs={"champion.safetensors": digest}, attempts_max=1)
        dead = await here.until(item_id, WorkState.DEAD)
        assert f"the champion's file ({digest}) does not have the content of its name" in dead.error
        assert here.runtime.children == []
        (found,) = await damaged_inputs(here.engine.kv)
        assert (found.digest, found.name, found.item_id) == (digest, "champion.safetensors", item_id)
        del here.store.blobs.content[digest]  # as the integrity check does when it sets the file aside
        again = await here.add(inputs={"champion.safetensors": digest}, attempts_max=1)
        dead = await here.until(again, WorkState.DEAD)
        assert f"the champion's file ({digest}) was damaged and is set aside" in dead.error

    world(scenario)


def test_a_job_that_brought_files_leaves_a_sealed_record_of_what_it_was_asked_and_brought(world):
    async def scenario(here):
        item_id = await here.add()
        child = await here.child()
        (here.folders.of(item_id).out / "a.db").write_bytes(b"games")
        end_well(child, artifacts=[{"path": "a.db", "artifact": "shard", "counts": {"games": 3}}], games=3)
        done = await here.until(item_id, DONE)
        shard, record = done.result["artifacts"]
        content = (await here.engine.blobs.open(record["digest"])).read()
        found = read_sealed_job(content)
        assert (found.item_id, found.kind) == (item_id, "selfplay")
        assert found.order.as_payload() == done.payload
        assert found.report.as_result() == {**done.result, "artifacts": [shard]}

    world(scenario)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_has_no_process_left_now_costs_an_attempt_and_not_the_item(world, number):
    async def scenario(here):
        spawn, refused = here.runtime.spawn, []

        async def short_of_processes(command):
            if not refused:
                refused.append(command)
                raise OSError(number, os.strerror(number))
            return await spawn(command)

        here.runtime.spawn = short_of_processes
        item_id = await here.add()
        while not refused:
            await here.wait_a_little()
        assert (await here.item(item_id)).state is not DEAD
        end_well(await here.child())
        assert (await here.until(item_id, DONE, DEAD)).state is DONE

    world(scenario)
