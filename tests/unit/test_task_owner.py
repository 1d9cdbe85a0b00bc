"""The tasks of an object: their errors are seen, and none outlives its stop."""

import asyncio

import pytest
import structlog

from ringrift.task_owner import TaskOwner

STOP_S = 60.0


async def fail(text):
    raise ValueError(text)


async def end(value):
    return value


async def test_a_task_gives_its_result_to_whoever_waits_for_it():
    owner = TaskOwner("a test")
    assert await owner.create_task(end(3)) == 3
    assert await owner.wait(STOP_S) == ()
    assert len(owner) == owner.errors == 0


async def test_an_error_is_logged_and_counted_and_handed_to_whoever_waits():
    owner = TaskOwner("a test")
    with structlog.testing.capture_logs() as lines:
        owner.create_task(fail("out of paper"), name="printing")
        (error,) = await owner.wait(STOP_S)
    assert str(error) == "out of paper"
    assert [(line["event"], line["task"]) for line in lines] == [("tasks.failed", "printing")]
    assert owner.errors == 1


async def test_waiting_ends_after_its_time_and_leaves_the_tasks_alone():
    owner = TaskOwner("a test")
    task = owner.create_task(asyncio.Event().wait())
    assert await owner.wait(0.01) == ()
    assert len(owner) == 1
    assert not task.done()
    await owner.stop(STOP_S)


async def test_an_error_does_not_end_the_others_and_is_handed_to_whoever_stops():
    owner, running = TaskOwner("a test"), asyncio.Event()
    other = owner.create_task(running.wait())
    with pytest.raises(ValueError, match="out of paper"):
        await owner.create_task(fail("out of paper"))
    assert not other.done()
    (error,) = await owner.stop(STOP_S)
    assert str(error) == "out of paper"
    assert other.cancelled()


async def test_stop_waits_for_what_a_task_does_at_its_end():
    owner, begun, closed = TaskOwner("a test"), asyncio.Event(), []

    async def work():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    owner.create_task(work())
    await begun.wait()
    assert await owner.stop(STOP_S) == ()
    assert closed == [True]


async def test_a_task_that_ignores_cancellation_is_named_and_not_waited_for():
    owner, begun, released = TaskOwner("a test"), asyncio.Event(), asyncio.Event()

    async def stubborn():
        begun.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    task = owner.create_task(stubborn(), name="stubborn")
    await begun.wait()
    with structlog.testing.capture_logs() as lines:
        await owner.stop(0.01)
    assert [(line["event"], line["task"]) for line in lines] == [("tasks.not_stopped", "stubborn")]
    released.set()
    await task


async def test_nothing_starts_after_stop():
    owner = TaskOwner("a test")
    await owner.stop(STOP_S)
    with pytest.raises(RuntimeError, match="a test has stopped"):
        owner.create_task(end(3))


async def test_nothing_starts_while_it_stops():
    owner, begun, refused = TaskOwner("a test"), asyncio.Event(), []

    async def restarts():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            with pytest.raises(RuntimeError) as caught:
                owner.create_task(end(3))
            refused.append(caught.value)

    owner.create_task(restarts())
    await begun.wait()
    assert await owner.stop(STOP_S) == ()
    assert len(refused) == 1


async def test_one_of_the_tasks_may_stop_the_others():
    owner = TaskOwner("a test")
    other = owner.create_task(asyncio.Event().wait())

    async def stop():
        await asyncio.sleep(0)
        return await owner.stop(STOP_S)

    assert await owner.create_task(stop()) == ()
    assert other.cancelled()


async def test_whoever_stops_can_be_cancelled():
    owner, begun, released = TaskOwner("a test"), asyncio.Event(), asyncio.Event()

    async def slow():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await released.wait()

    task = owner.create_task(slow())
    await begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await owner.stop(STOP_S)
    released.set()
    await asyncio.wait({task})
