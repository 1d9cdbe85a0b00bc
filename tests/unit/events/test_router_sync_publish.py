"""Publishing from code that is not async, on any thread."""

import asyncio
import threading
from collections import Counter

import pytest

from ringrift.coordination.dead_letter_queue import get_dead_letter_queue
from ringrift.coordination.event_router import get_router, publish_sync, reset_router, subscribe
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Subscription, SubscriptionTable
from ringrift.events.tracing import get_trace_id, span
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.runtime import SystemRuntime


def test_without_a_loop_everything_is_handled_on_return():
    router, seen = UnifiedEventRouter(), []

    async def slow(event):
        await asyncio.sleep(0.001)
        router.publish_sync("SECOND")  # inside a loop now: it must not get lost
        seen.append(event["n"])

    router.subscribe("MY_EVENT", slow)
    router.subscribe("SECOND", lambda event: seen.append("second"))
    for n in range(3):
        event = router.publish_sync("MY_EVENT", {"n": n})
        assert isinstance(event, RouterEvent)
    assert seen == [0, "second", 1, "second", 2, "second"]


@pytest.mark.parametrize("name", ["CHECKPOINT_SAVED", "DATA_SYNC_COMPLETED"], ids=["stays", "crosses"])
async def test_inside_a_loop_events_come_in_the_order_in_which_they_were_published(name):
    router, seen = get_router(), []
    router.subscribe(None, lambda event: seen.append(event.payload["n"]))
    for _ in range(3):
        seen.clear()
        router.publish_sync(name, {"n": 0})
        router.publish_sync(name, {"n": 1})
        await router.publish(name, {"n": 2})
        router.publish_sync(name, {"n": 3})
        await router.publish_event(RouterEvent(name, {"n": 4}))
        assert seen == [0, 1, 2, 3, 4]
    await router.stop()
    await close_engine()


async def test_on_the_loop_of_another_thread_they_come_in_that_order_too():
    router, seen = UnifiedEventRouter(enable_cross_process_polling=False), []
    router.subscribe(None, lambda event: seen.append(event.payload["n"]))
    await router.publish("FIRST", {"n": 0})

    async def publish():
        router.publish_sync("MY_EVENT", {"n": 1})
        await router.publish("MY_EVENT", {"n": 2})

    await asyncio.to_thread(asyncio.run, publish())
    assert seen == [0, 1, 2]
    await router.stop()


async def test_one_that_was_cancelled_before_it_began_holds_nobody_up():
    router, seen = UnifiedEventRouter(enable_cross_process_polling=False), []
    router.subscribe("MY_EVENT", lambda event: seen.append(event.payload["n"]))
    router.delivery(router.publish_sync("MY_EVENT", {"n": 0})).cancel()
    async with asyncio.timeout(2):
        await router.publish("MY_EVENT", {"n": 1})
    assert seen == [1]
    await router.stop()


async def test_inside_a_loop_it_returns_the_event_which_is_on_its_way():
    router, seen = UnifiedEventRouter(), []
    router.subscribe("TRAINING_COMPLETED", seen.append)
    event = router.publish_sync("training_completed", {"config": "hex8_2p", "success": False}, "me")
    assert isinstance(event, RouterEvent)
    assert (event.event_type, event.source, event.success) == ("TRAINING_COMPLETED", "me", False)
    assert event.payload["config_key"] == "hex8_2p"
    assert event.event_id
    assert event.trace_id
    assert seen == []
    delivery = router.delivery(event)
    assert await delivery is event
    assert seen == [event]
    assert router.delivery(event) is None
    stats = router.get_stats()
    assert (stats["total_events_routed"], stats["unknown_events"]) == (1, 0)


async def test_inside_a_loop_a_wrong_event_raises_at_once():
    router = UnifiedEventRouter()
    for wrong in ({"payload": ["no", "table"]}, {"source": 5}):
        with pytest.raises(ConfigError):
            router.publish_sync("MY_EVENT", **wrong)
    with pytest.raises(ConfigError):
        router.publish_sync(object())


async def test_inside_a_loop_an_event_with_a_known_id_is_delivered_once():
    router, seen = UnifiedEventRouter(), []
    router.subscribe("MY_EVENT", seen.append)
    event = RouterEvent("MY_EVENT", {"n": 1})
    for _ in range(2):
        published = router.publish_sync(event)
        assert published is event
        await router.delivery(event)
    assert len(seen) == 1


async def test_another_thread_hands_over_to_the_loop_of_the_handlers():
    router, threads, result = UnifiedEventRouter(), [], []

    async def handle(event):
        await asyncio.sleep(0)
        threads.append(threading.get_ident())

    router.subscribe("MY_EVENT", handle)
    await router.start()
    await asyncio.to_thread(lambda: result.append(router.publish_sync("MY_EVENT", {"n": 1})))
    assert threads == [threading.get_ident()]
    assert result[0].event_type == "MY_EVENT"


async def test_another_loop_hands_over_to_the_loop_of_the_handlers():
    router, threads = UnifiedEventRouter(), []
    router.subscribe("MY_EVENT", lambda event: threads.append(threading.get_ident()))
    await router.start()
    await asyncio.to_thread(lambda: asyncio.run(router.publish("MY_EVENT")))
    assert threads == [threading.get_ident()]


class NotedRuntime(SystemRuntime):
    """Notes which thread asks for ids: the router does for each event that it publishes."""

    def __init__(self):
        super().__init__()
        self.threads = []

    def new_id(self):
        self.threads.append(threading.get_ident())
        return super().new_id()


async def test_what_another_loop_publishes_is_published_whole_on_the_loop_of_the_handlers():
    """Names, ids and counts of the router are touched by one thread, and the trace goes with the event."""
    runtime = NotedRuntime()
    router = UnifiedEventRouter(surroundings=Surroundings(runtime=runtime))
    await router.start()
    runtime.threads.clear()
    traces = []

    async def elsewhere():
        with span("elsewhere"):
            event = await router.publish("MY_EVENT", {"n": 1})
            traces.append((event.trace_id, get_trace_id()))

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert set(runtime.threads) == {threading.get_ident()}
    assert len({*traces[0]}) == 1


async def test_a_subscription_that_another_thread_ends_is_ended_on_the_loop_of_the_handlers():
    router, threads = get_router(), []
    handle = router.subscribe("TRAINING_COMPLETED", lambda event: None, "reader")
    await router.start()
    crossing = router._crossing
    unsubscribed = crossing.unsubscribed

    def note(subscription):
        threads.append(threading.get_ident())
        unsubscribed(subscription)

    crossing.unsubscribed = note
    assert await asyncio.to_thread(handle.cancel)
    assert not handle.active
    await asyncio.sleep(0)
    assert threads == [threading.get_ident()]
    await router.stop()


class Intruder(str):
    """A type of event that does something whenever it is compared, as another thread might meanwhile."""

    __slots__ = ("act",)
    __hash__ = str.__hash__

    def __eq__(self, other):
        act, self.act = getattr(self, "act", None), None
        if act is not None:
            act()
        return str.__eq__(self, other)


def test_who_subscribes_while_the_router_looks_up_its_targets_is_not_forgotten():
    table, kind = SubscriptionTable(), Intruder("MY_EVENT")
    kind.act = lambda: table.add(Subscription("late", None, print))
    table.add(Subscription("early", (kind,), print))
    table.targets("MY_EVENT")
    assert [item.name for item in table.targets("MY_EVENT")] == ["late", "early"]
    assert [item.name for item in table.crossing()] == ["early", "late"]


def test_two_threads_that_subscribe_under_one_name_get_two():
    table = SubscriptionTable()
    for _ in range(2):
        table.add(Subscription("reader", ("MY_EVENT",), print))
    assert [item.name for item in table] == ["reader", "reader#2"]


class Since(float):
    """A time that does something when it is compared, as another thread might meanwhile."""

    act = staticmethod(lambda: None)

    def __le__(self, other):
        self.act()
        return float.__le__(self, other)


async def test_the_history_can_be_asked_for_while_another_thread_publishes():
    router, since = UnifiedEventRouter(), Since(0)
    for n in range(2):
        await router.publish("MY_EVENT", {"n": n})
    since.act = lambda: router._event_history.append(RouterEvent("MY_EVENT", {"n": 2}))
    assert [event["n"] for event in router.get_history(since=since)] == [0, 1]


def test_a_new_loop_takes_the_router_over_from_one_that_ended():
    router, seen, begun = UnifiedEventRouter(), [], asyncio.Event()

    async def handle(event):
        if event["n"] == 0:
            begun.set()
            await asyncio.sleep(60)
        seen.append(event["n"])

    async def left_behind():
        router.publish_sync("MY_EVENT", {"n": 0})
        await begun.wait()

    router.subscribe("MY_EVENT", handle)
    asyncio.run(left_behind())
    asyncio.run(router.publish("MY_EVENT", {"n": 1}))
    assert seen == [1]


def test_many_threads_at_once():
    router, seen = UnifiedEventRouter(), []

    async def handle(event):
        await asyncio.sleep(0)
        seen.append(event["n"])

    router.subscribe("MY_EVENT", handle)
    threads = [
        threading.Thread(target=lambda n=n: [router.publish_sync("MY_EVENT", {"n": n}) for _ in range(5)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(seen) == sorted(list(range(8)) * 5)


async def test_module_functions_use_the_one_router():
    seen = []
    handle = subscribe("CHECKPOINT_SAVED", seen.append)
    await get_router().delivery(publish_sync("CHECKPOINT_SAVED", {}))
    assert len(seen) == 1
    assert get_router().has_subscribers("CHECKPOINT_SAVED")
    handle()
    first = get_router()
    reset_router()
    assert get_router() is not first


def test_threads_that_each_run_a_short_loop_of_their_own_lose_and_repeat_nothing():
    """The router lives on one of these loops at a time, and each of them ends at once."""
    seen, refused = Counter(), set()

    async def handle(event):
        await asyncio.sleep(0)
        seen[event["n"]] += 1

    def run(n):
        try:
            asyncio.run(get_router().publish("TRAINING_COMPLETED", {"n": n}))
        except Unavailable:
            refused.add(n)

    get_router().subscribe("TRAINING_COMPLETED", handle)
    threads = [threading.Thread(target=run, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)

    async def until_all_are_there():
        await get_router().publish("TRAINING_COMPLETED", {"n": 20})
        async with asyncio.timeout(60):
            while not seen.keys() >= set(range(21)) - refused:
                await get_dead_letter_queue().retry_all()  # those whose loop ended under their handler
                await asyncio.sleep(0.01)
        await get_router().stop()

    asyncio.run(until_all_are_there())
    assert set(seen.values()) == {1}
