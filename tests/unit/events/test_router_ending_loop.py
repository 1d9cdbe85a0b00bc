"""The loop that the router lives on ends under it: nothing is lost, and nothing is started any more."""

import asyncio
import gc
import logging
import threading

import pytest

from ringrift.coordination.dead_letter_queue import get_dead_letter_queue
from ringrift.coordination.event_router import get_router
from ringrift.engine.opening import get_engine
from ringrift.errors import Unavailable
from ringrift.events.delivery import DeliveryTasks
from ringrift.events.router_reports import FailureKind
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings

CROSSING = "TRAINING_COMPLETED"


class Letters:
    """Keeps failures in memory."""

    def __init__(self):
        self.failures = []

    def capture_failure(self, failure, *, instance):
        self.failures.append(failure)
        return f"letter-{len(self.failures)}"

    @property
    def numbers(self):
        assert {failure.kind for failure in self.failures} <= {FailureKind.CANCELLED}
        return sorted(failure.event["n"] for failure in self.failures)


@pytest.fixture
def letters():
    return Letters()


@pytest.fixture
def router(letters):
    settings = load_settings({"RINGRIFT_EVENT_HANDLER_TIMEOUT": "100"}).settings
    return UnifiedEventRouter(surroundings=Surroundings(settings=settings, dead_letters=letters))


@pytest.fixture(autouse=True)
def quiet(caplog):
    """A task that an ended loop left behind is reported when it is collected."""
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Stuck:
    """A handler that stays in its first event until that is cancelled, and takes note of the others."""

    def __init__(self):
        self.seen, self.is_stuck = [], True

    async def __call__(self, event):
        if event["n"] == 0 and self.is_stuck:
            await asyncio.sleep(60)
        self.seen.append(event["n"])


async def busy_with_the_first(router, *, event_type="WORK"):
    publishing = asyncio.create_task(router.publish(event_type, {"n": 0}))
    while not any(item.running for item in router.subscriptions_to(event_type)):
        await asyncio.sleep(0.001)
    return publishing


def leave_work_in_the_mailbox(router, numbers):
    """Published inside a handler, the work waits in the mailbox and the router is to run it.

    Returns the event that it is all there.
    """
    is_left = asyncio.Event()

    async def fan_out(event):
        for n in numbers:
            await router.publish("WORK", {"n": n})
        is_left.set()

    router.subscribe("FAN_OUT", fan_out)
    return is_left


def test_what_waits_in_a_mailbox_becomes_dead_letters(router, letters):
    stuck = Stuck()
    router.subscribe("WORK", stuck)
    is_left = leave_work_in_the_mailbox(router, [1, 2, 3])

    async def main():
        await busy_with_the_first(router)
        router.publish_sync("FAN_OUT")
        await is_left.wait()

    asyncio.run(main())
    assert stuck.seen == []
    assert letters.numbers == [0, 1, 2, 3]


def test_what_publishers_wait_for_becomes_dead_letters(router, letters):
    stuck = Stuck()
    router.subscribe("WORK", stuck)
    is_left = leave_work_in_the_mailbox(router, [3, 4])

    async def main():
        await busy_with_the_first(router)
        waiting = [router.delivery(router.publish_sync("WORK", {"n": n})) for n in (1, 2)]
        while [len(item.mailbox) for item in router.subscriptions_to("WORK")] != [2]:
            await asyncio.sleep(0.001)
        router.publish_sync("FAN_OUT")
        await is_left.wait()
        assert not any(task.done() for task in waiting)

    asyncio.run(main())
    assert stuck.seen == []
    assert letters.numbers == [0, 1, 2, 3, 4]


def test_the_other_subscriptions_of_a_cancelled_publisher_get_their_dead_letters(router, letters):
    stuck, second = Stuck(), Stuck()
    router.subscribe("WORK", stuck, "first")
    router.subscribe("WORK", second, "second")
    asyncio.run(_first_is_busy(router))
    assert sorted(failure.subscription.name for failure in letters.failures) == ["first", "second"]
    assert letters.numbers == [0, 0]


async def _first_is_busy(router):
    await busy_with_the_first(router)


def test_a_delivery_that_never_took_its_first_step_is_not_lost(router, letters):
    stuck, gate = Stuck(), []
    router.subscribe("WORK", stuck)
    is_left = leave_work_in_the_mailbox(router, [1])

    async def main():
        publishing = await busy_with_the_first(router)
        router.publish_sync("FAN_OUT")
        await is_left.wait()
        publishing.cancel()
        publishing.add_done_callback(lambda _: gate.append("open"))
        while not router._dispatcher._tasks:  # the next was given its task, which has not run yet
            await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(letters.numbers + stuck.seen) == [0, 1]


def test_what_a_handler_publishes_while_the_loop_ends_is_not_lost(router, letters):
    seen, begun = [], asyncio.Event()

    async def farewell(event):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await router.publish("WORK", {"n": 1})
            await router.publish("WORK", {"n": 2})

    async def work(event):
        seen.append(event["n"])

    router.subscribe("LAST", farewell)
    router.subscribe("WORK", work)

    async def main():
        router.publish_sync("LAST", {"n": 0})
        await begun.wait()

    asyncio.run(main())
    assert seen == [1, 2]
    assert letters.numbers == [0]


def test_events_of_the_log_come_to_the_next_loop_once_each():
    stuck = Stuck()
    seen = stuck.seen
    get_router().subscribe(CROSSING, stuck)

    async def main():
        router = get_router()
        await busy_with_the_first(router, event_type=CROSSING)
        for n in (1, 2):
            router.publish_sync(CROSSING, {"n": n})
        events = (await get_engine()).events
        while (await events.bounds()).last < 3:
            await asyncio.sleep(0.01)

    async def until_all_are_there():
        await get_router().publish(CROSSING, {"n": 3})
        async with asyncio.timeout(60):
            while not {0, 1, 2, 3} <= set(seen):
                await get_dead_letter_queue().retry_all()
                await asyncio.sleep(0.01)
        await get_router().stop()

    asyncio.run(main())
    assert seen == []
    stuck.is_stuck = False
    asyncio.run(until_all_are_there())
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_loop_that_stands_still_with_its_tasks_leaves_dead_letters_to_the_next(router, letters):
    stuck = Stuck()
    router.subscribe("WORK", stuck)
    is_left = leave_work_in_the_mailbox(router, [1, 2])
    loop = asyncio.new_event_loop()
    kept = []

    async def main():
        kept.append(await busy_with_the_first(router))
        kept.append(router.delivery(router.publish_sync("FAN_OUT")))
        await is_left.wait()

    loop.run_until_complete(main())
    asyncio.run(router.publish("WORK", {"n": 3}))
    assert stuck.seen == [3]
    assert letters.numbers == [0, 1, 2]
    for task in kept:
        task.cancel()
    loop.run_until_complete(asyncio.wait(kept))
    loop.close()


def test_a_cancelled_publisher_on_a_living_loop_lets_the_next_run(router, letters):
    """Also where that publisher is the only task of its loop."""
    stuck = Stuck()
    router.subscribe("WORK", stuck)
    leave_work_in_the_mailbox(router, [1, 2])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        publishing = asyncio.run_coroutine_threadsafe(router.publish("WORK", {"n": 0}), loop)
        _until(lambda: any(item.running for item in router.subscriptions_to("WORK")))
        fanning = asyncio.run_coroutine_threadsafe(router.publish("FAN_OUT"), loop)
        _until(lambda: [len(item.mailbox) for item in router.subscriptions_to("WORK")] == [2])
        publishing.cancel()
        fanning.result(60)
        asyncio.run_coroutine_threadsafe(router.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
    assert stuck.seen == [1, 2]
    assert letters.numbers == [0]


@pytest.mark.parametrize("publish", ["async", "sync"])
def test_a_loop_that_is_ending_is_handed_no_more_events(router, publish):
    """It still runs, to end its tasks; what it would begin now, nobody would finish."""
    threads, ending, may_end = [], threading.Event(), threading.Event()

    async def handle(event):
        await asyncio.sleep(0.01)
        threads.append(threading.get_ident())

    async def slow_to_end():
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            while not may_end.is_set():
                await asyncio.sleep(0.001)

    async def first_home():
        await router.start()
        waiting = asyncio.create_task(slow_to_end())
        await asyncio.sleep(0)
        assert not waiting.done()

    router.subscribe("WORK", handle)
    thread = threading.Thread(target=lambda: asyncio.run(first_home()))
    thread.start()
    assert ending.wait(60)
    threading.Timer(0.1, may_end.set).start()
    if publish == "async":
        asyncio.run(router.publish("WORK"))
    else:
        router.publish_sync("WORK")
    thread.join(60)
    assert len(threads) == 1
    assert threads != [thread.ident]


def test_a_sync_publisher_is_told_when_the_loop_ends_half_way(router, letters):
    stuck = Stuck()
    router.subscribe("WORK", stuck)
    begun = threading.Event()
    router.subscribe("WORK", lambda event: None, "after")

    async def home():
        await router.start()
        begun.set()
        while not any(item.running for item in router.subscriptions_to("WORK")):
            await asyncio.sleep(0.001)

    thread = threading.Thread(target=lambda: asyncio.run(home()))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(Unavailable, match="half delivered"):
        router.publish_sync("WORK", {"n": 0})
    thread.join(60)
    assert letters.numbers == [0, 0]


def _until(condition):
    waited = threading.Event()
    for _ in range(30_000):
        if condition():
            return
        waited.wait(0.002)
    pytest.fail("it never came true")


async def test_deliveries_that_just_ended_do_not_keep_the_end_waiting():
    tasks = DeliveryTasks(never_began=lambda delivery: None)

    async def deliver():
        pass

    tasks.spawn(deliver())
    await asyncio.sleep(0)  # it has ended, and the loop has not called back yet
    assert [task.done() for task in tasks] == [True]
    await tasks.cancel()
    assert len(tasks) == 0
    await tasks.cancel()
