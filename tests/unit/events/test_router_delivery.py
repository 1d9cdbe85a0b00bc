"""Who is called, in which order, and what a publisher can rely on."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from ringrift.coordination.event_mappings import StageEvent
from ringrift.coordination.event_router import get_router, safe_emit_event, safe_emit_event_async
from ringrift.errors import CausalChainTooLong, PayloadError, UnknownEventTypeError
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.event import EventSource, RouterEvent, current_delivery, get_event_payload
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings


def make_router(**env):
    settings = load_settings({f"RINGRIFT_{k.upper()}": str(v) for k, v in env.items()}).settings
    return UnifiedEventRouter(surroundings=Surroundings(settings=settings))


@pytest.fixture
def router():
    return make_router()


@pytest.fixture
def calls():
    return []


def recorder(calls, label, *, wait=0):
    async def handle(event):
        for _ in range(wait):
            await asyncio.sleep(0)
        calls.append((label, event.get("n")))

    return handle


async def test_the_publisher_waits_for_async_and_plain_handlers(router, calls):
    router.subscribe("MY_EVENT", recorder(calls, "async", wait=3))
    router.subscribe("MY_EVENT", lambda event: calls.append(("plain", event["n"])))
    event = await router.publish("MY_EVENT", {"n": 1}, "tester")
    assert calls == [("async", 1), ("plain", 1)]
    assert (event.event_type, event.source, event.origin) == ("MY_EVENT", "tester", EventSource.ROUTER)
    assert len(event.event_id) == 36
    assert len(event.trace_id) == 32


async def test_global_subscribers_come_first_then_typed_ones_in_order_of_registration(router, calls):
    router.subscribe("MY_EVENT", recorder(calls, "typed 1"))
    router.subscribe(None, recorder(calls, "all 1", wait=2))
    router.subscribe("MY_EVENT", recorder(calls, "typed 2", wait=1))
    router.subscribe(None, recorder(calls, "all 2"))
    await router.publish("MY_EVENT", {"n": 1})
    assert [label for label, _ in calls] == ["all 1", "all 2", "typed 1", "typed 2"]


async def test_an_event_published_by_enum_reaches_every_spelling_exactly_once():
    for published in DataEventType:
        router, calls = make_router(), []
        router.subscribe(published, recorder(calls, "enum"))
        router.subscribe(published.name, recorder(calls, "name"))
        router.subscribe(published.value, recorder(calls, "value"))
        router.subscribe(published.name.lower(), recorder(calls, "lower"))
        event = await router.publish(published, {"n": 1})
        assert [label for label, _ in calls] == ["enum", "name", "value", "lower"], published
        assert event.event_type == published.name


async def test_a_stage_reaches_its_event_once():
    for stage in StageEvent:
        router, calls = make_router(), []
        router.subscribe(stage, recorder(calls, "stage"))
        await router.publish(stage, {"n": 1, "success": True})
        assert [label for label, _ in calls] == ["stage"], stage


async def test_a_failed_promotion_is_not_published_as_a_promotion(router, calls):
    router.subscribe("MODEL_PROMOTED", recorder(calls, "promoted"))
    router.subscribe("PROMOTION_FAILED", recorder(calls, "failed"))
    router.subscribe(StageEvent.PROMOTION_COMPLETE, recorder(calls, "stage"))
    await router.publish("PROMOTION_COMPLETE", {"success": False})
    await router.publish("PROMOTION_COMPLETE", {"success": True})
    assert [label for label, _ in calls] == ["failed", "stage", "promoted", "stage"]


async def test_the_same_callback_registered_twice_is_called_twice(router, calls):
    handle = recorder(calls, "h")
    router.subscribe("MY_EVENT", handle)
    router.subscribe("MY_EVENT", handle)
    await router.publish("MY_EVENT", {})
    assert len(calls) == 2
    assert router.unsubscribe("my_event".upper(), handle)
    await router.publish("MY_EVENT", {})
    assert len(calls) == 3


async def test_unsubscribing_what_is_not_there_says_so(router, calls):
    assert router.unsubscribe("MY_EVENT", print) is False
    handle = router.subscribe("MY_EVENT", recorder(calls, "h"))
    assert handle() is True
    assert handle.cancel() is False
    await router.publish("MY_EVENT", {})
    assert calls == []


async def test_subscribing_and_unsubscribing_inside_a_handler_is_safe(router, calls):
    async def first(event):
        router.subscribe("MY_EVENT", recorder(calls, "late"))
        second_handle()

    router.subscribe("MY_EVENT", first)
    second_handle = router.subscribe("MY_EVENT", recorder(calls, "second"))
    await router.publish("MY_EVENT", {"n": 1})
    assert calls == []  # one had left, the other came too late for this event
    await router.publish("MY_EVENT", {"n": 2})
    assert calls[0] == ("late", 2)


async def test_has_subscribers_ignores_those_who_hear_everything(router):
    router.subscribe(None, print)
    assert not router.has_subscribers("TRAINING_COMPLETED")
    router.subscribe("training_completed", print)
    assert router.has_subscribers(DataEventType.TRAINING_COMPLETED)
    assert router.unsubscribe_all("TRAINING_COMPLETED") == 1
    assert not router.has_subscribers("TRAINING_COMPLETED")
    assert router.unsubscribe_all() == 1


async def test_events_reach_a_slow_subscription_one_at_a_time_and_in_order(router, calls):
    running = 0

    async def slow(event):
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        calls.append(("slow", event["n"]))

    router.subscribe("MY_EVENT", slow)
    router.subscribe("MY_EVENT", recorder(calls, "fast"))
    tasks = [router.delivery(router.publish_sync("MY_EVENT", {"n": n})) for n in range(20)]
    await asyncio.gather(*tasks)
    assert [n for label, n in calls if label == "slow"] == list(range(20))
    assert [n for label, n in calls if label == "fast"] == list(range(20))


async def test_a_handler_runs_in_the_task_of_its_publisher(router):
    tasks = set()

    async def handle(event):
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.add(asyncio.current_task())

    router.subscribe("MY_EVENT", handle)
    await router.publish("MY_EVENT", {})
    assert tasks == {asyncio.current_task()}


# --- events published inside handlers ---------------------------------------------------------------------


async def test_what_handlers_publish_is_handled_before_the_outermost_publish_returns(router, calls):
    async def first(event):
        await asyncio.sleep(0)
        await router.publish("SECOND", {"n": 2})
        calls.append(("first", 1))

    async def second(event):
        await router.publish("FIRST_AGAIN", {"n": 3})
        calls.append(("second", 2))

    router.subscribe("FIRST", first)
    router.subscribe("SECOND", second)
    router.subscribe("FIRST_AGAIN", recorder(calls, "third", wait=2))
    await router.publish("FIRST", {"n": 1})
    assert calls == [("third", 3), ("second", 2), ("first", 1)]


async def test_two_handlers_that_publish_to_each_other_do_not_deadlock(router, calls):
    async def ping(event):
        await asyncio.sleep(0)
        if event["n"] < 4:
            await router.publish("PONG", {"n": event["n"] + 1})
        calls.append(("ping", event["n"]))

    async def pong(event):
        await asyncio.sleep(0)
        await router.publish("PING", {"n": event["n"] + 1})
        calls.append(("pong", event["n"]))

    router.subscribe("PING", ping)
    router.subscribe("PONG", pong)
    async with asyncio.timeout(60):
        await asyncio.gather(router.publish("PING", {"n": 0}), router.publish("PONG", {"n": 1}))
    assert sorted(calls)[-1] == ("pong", 3)
    assert sum(label == "ping" for label, _ in calls) == 5


async def test_a_handler_that_publishes_its_own_event_is_stopped(router):
    depths = []

    async def echo(event):
        depths.append(current_delivery.get().depth)
        await router.publish("ECHO", {})

    router.subscribe("ECHO", echo)
    async with asyncio.timeout(60):
        await router.publish("ECHO", {})
    assert depths == list(range(33))
    assert router.get_stats()["handler_failures"] == 1


async def test_a_handler_may_hand_its_event_on_to_another_router(router, calls):
    """It is no child of itself, and its publisher waits for the whole chain at each of them."""
    other = make_router()

    async def hand_on(event):
        await other.publish_event(event)
        await router.publish("BUSY", {"n": 2})

    async def busy(event):
        calls.append(event["n"])
        if event["n"] == 1:
            await router.publish("HANDED_ON", {"n": 1})
        await asyncio.sleep(0)

    router.subscribe("HANDED_ON", hand_on)
    router.subscribe("BUSY", busy)
    other.subscribe("HANDED_ON", lambda event: calls.append(f"other {event['n']}"))
    event = await router.publish("HANDED_ON", {"n": 0})
    assert (event.parent_event_id, event.correlation_id, calls) == ("", "", ["other 0", 2])
    calls.clear()
    await router.publish("BUSY", {"n": 1})
    assert calls == [1, "other 1", 2]


async def test_what_an_event_was_part_of_elsewhere_says_nothing_here(router, calls):
    """Published inside a handler it waits for nobody; published again outside of one, its publisher does."""
    event, running, go_on = RouterEvent("AGAIN"), asyncio.Event(), asyncio.Event()
    other = make_router()

    async def first(_):
        await other.publish_event(event)

    async def busy(found):
        running.set()
        await go_on.wait()
        calls.append(found.event_id)

    other.subscribe("OUTER", first)
    await other.publish("OUTER", {})
    router.subscribe("AGAIN", busy)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        before = group.create_task(router.publish("AGAIN", {}))
        await running.wait()
        again = group.create_task(router.publish_event(event))
        await asyncio.sleep(0)
        assert not again.done()
        go_on.set()
    assert calls == [before.result().event_id, event.event_id]


async def test_the_causal_chain_is_on_the_events(router):
    seen = []

    async def first(event):
        await router.publish("SECOND", {})

    router.subscribe("FIRST", first)
    router.subscribe("SECOND", seen.append)
    event = await router.publish("FIRST", {})
    assert seen[0].parent_event_id == event.event_id
    assert seen[0].correlation_id == event.event_id
    assert seen[0].trace_id == event.trace_id


async def test_a_task_left_behind_by_a_handler_starts_a_chain_of_its_own(router):
    seen, depths, left = [], [], []

    async def later():
        await asyncio.sleep(0.001)
        await router.publish("LATER", {})

    async def first(event):
        left.append(asyncio.create_task(later()))

    router.subscribe("FIRST", first)
    router.subscribe("LATER", seen.append)
    router.subscribe("LATER", lambda event: depths.append(current_delivery.get().depth))
    await router.publish("FIRST", {})
    await left[0]
    assert depths == [0]
    assert seen[0].parent_event_id


# --- names and payloads -----------------------------------------------------------------------------------


async def test_unknown_events_pass_unless_strict(calls):
    relaxed, strict = make_router(), make_router(event_validation_strict="true")
    relaxed.subscribe("test_event", recorder(calls, "h"))
    event = await relaxed.publish("test_event", {"n": 1})
    assert event.event_type == "test_event"
    assert calls == [("h", 1)]
    with pytest.raises(UnknownEventTypeError, match="Did you mean"):
        await strict.publish("TRAINING_COMPLETD", {})


async def test_a_wrong_payload_is_counted_or_refused(calls):
    relaxed, strict = make_router(), make_router(event_validation_strict="true")
    relaxed.subscribe("MODEL_PROMOTED", recorder(calls, "h"))
    await relaxed.publish("MODEL_PROMOTED", {"model_path": 7})
    assert relaxed.get_stats()["payload_problems"] == 1
    assert len(calls) == 1
    with pytest.raises(PayloadError):
        await strict.publish("MODEL_PROMOTED", {"model_path": 7})
    assert strict.get_stats()["total_events_routed"] == 0


async def test_strict_takes_the_examples_of_the_documents_though_they_leave_fields_out():
    strict = make_router(event_validation_strict="true")
    for name, payload in (
        ("TRAINING_COMPLETED", {"config": "hex8_2p", "success": True, "epochs": 50}),
        (DataEventType.TRAINING_COMPLETED, {"config": "square8_2p"}),
        (DataEventType.MODEL_PROMOTED, {"model_path": "models/canonical_hex8_2p.pth"}),
        ("DATA_SYNC_COMPLETED", {"games_synced": 150, "duration": 12.5}),
    ):
        await strict.publish(name, payload)
    assert strict.get_stats()["total_events_routed"] == 4
    assert strict.get_stats()["payload_problems"] > 0


async def test_handlers_may_treat_the_event_as_its_payload(router):
    found = []

    def handle(event):
        found.append((event.get("config"), event["config_key"], "config" in event, event.get("x", 3)))
        found.append((event.get("event_type"), event["source"], sorted(event.keys())))
        with pytest.raises(KeyError):
            event["no such key"]

    router.subscribe("TRAINING_COMPLETED", handle)
    await router.publish("TRAINING_COMPLETED", {"config": "hex8_2p", "success": True}, "trainer")
    assert found[0] == ("hex8_2p", "hex8_2p", True, 3)
    assert found[1][:2] == ("TRAINING_COMPLETED", "trainer")


# --- repeated events --------------------------------------------------------------------------------------


async def test_an_event_with_a_known_id_is_dropped(router, calls):
    router.subscribe("MY_EVENT", recorder(calls, "h"))
    event = await router.publish("MY_EVENT", {"n": 1})
    await router.publish(event)
    await router.publish(RouterEvent("MY_EVENT", {"n": 2}, event_id=event.event_id))
    assert calls == [("h", 1)]
    assert router.get_stats()["duplicates_prevented"] == 2


async def test_equal_heartbeats_are_all_delivered(router, calls):
    router.subscribe("COORDINATOR_HEARTBEAT", recorder(calls, "h"))
    for _ in range(5):
        beat = RouterEvent("COORDINATOR_HEARTBEAT", {"n": 1}, origin=EventSource.DATA_BUS)
        await router.publish(beat)
    assert len(calls) == 5


async def test_equal_contents_from_other_buses_are_dropped_if_wanted(calls):
    router = UnifiedEventRouter(content_dedup=True)
    router.subscribe("MY_EVENT", recorder(calls, "h"))
    for origin in (EventSource.DATA_BUS, EventSource.STAGE_BUS, EventSource.ROUTER, EventSource.ROUTER):
        await router.publish(RouterEvent("MY_EVENT", {"n": 1}, origin=origin))
    assert len(calls) == 3
    assert router.get_stats()["content_duplicates_prevented"] == 1


async def test_memory_of_ids_is_bounded():
    router = UnifiedEventRouter(max_seen_events=10)
    for _ in range(50):
        await router.publish("MY_EVENT", {})
    assert router.get_stats()["seen_events_count"] == 10


# --- bounds -----------------------------------------------------------------------------------------------


async def test_the_causal_guard_is_an_error_of_the_publisher(router):
    errors = []

    async def echo(event):
        try:
            await router.publish("ECHO", {})
        except CausalChainTooLong as error:
            errors.append(error.depth)

    router.subscribe("ECHO", echo)
    await router.publish("ECHO", {})
    assert errors == [33]


async def test_history_keeps_the_last_thousand(router):
    for n in range(1010):
        await router.publish("MY_EVENT", {"n": n})
    assert len(router._event_history) == 1000
    assert [event["n"] for event in router.get_history("MY_EVENT", limit=2)] == [1008, 1009]
    assert router.get_history(origin=EventSource.STAGE_BUS) == []


# --- what broke in systems like this one, where no other test names it --------------------------------------


async def test_safe_emit_really_emits():
    seen = []
    get_router().subscribe("CHECKPOINT_SAVED", seen.append)
    assert await safe_emit_event_async("CHECKPOINT_SAVED", {"epoch": 1}) is True
    assert len(seen) == 1
    assert await asyncio.to_thread(safe_emit_event, "CHECKPOINT_SAVED", {"epoch": 2}) is True
    assert len(seen) == 2
    circular = {}
    circular["self"] = circular
    assert await safe_emit_event_async("TRAINING_COMPLETED", circular) is False


async def test_the_end_of_a_tuning_run_is_not_the_end_of_a_generation(router, calls):
    router.subscribe("PBT_GENERATION_COMPLETE", recorder(calls, "generation"))
    event = await router.publish("PBT_COMPLETED", {})
    assert event.event_type == "PBT_COMPLETED"
    assert calls == []


async def test_an_unknown_name_is_searched_for_once_and_not_on_every_publish(router, monkeypatch):
    searches = []
    monkeypatch.setattr("difflib.get_close_matches", lambda *a, **k: searches.append(a) or [])
    for _ in range(100):
        await router.publish("TRAINING_COMPLETD", {})
    assert len(searches) <= 1


async def test_a_handler_may_publish_while_it_holds_a_lock_that_another_handler_wants(router, calls):
    lock = asyncio.Lock()

    async def holder(event):
        async with lock:
            await router.publish("INNER", {"n": 1})
            calls.append(("holder", 1))

    async def wanter(event):
        async with asyncio.timeout(0.05):
            async with lock:
                calls.append(("wanter", 1))

    router.subscribe("OUTER", holder)
    router.subscribe("INNER", wanter, timeout=30)
    async with asyncio.timeout(60):
        await router.publish("OUTER", {})
    assert calls == [("holder", 1)]
    assert router.get_stats()["handler_failures"] == 1


def test_the_content_hash_survives_json():
    payload = {"b": (1, 2), "a": {"y": 1, "x": {3: 4}}, "timestamp": 5}
    event = RouterEvent("MY_EVENT", payload)
    again = RouterEvent("MY_EVENT", {**json.loads(json.dumps(payload)), "timestamp": 6})
    assert event.content_hash == again.content_hash
    assert len(event.content_hash) == 16
    assert RouterEvent("MY_EVENT", {**payload, "b": (2, 1)}).content_hash != event.content_hash


def test_payloads_are_found_in_whatever_a_handler_was_given():
    assert get_event_payload(RouterEvent("MY_EVENT", {"n": 1})) == {"n": 1}
    assert get_event_payload({"n": 1}) == {"n": 1}
    assert get_event_payload({"payload": {"n": 1}}) == {"n": 1}
    assert get_event_payload(SimpleNamespace(payload={"n": 1})) == {"n": 1}
    assert get_event_payload(SimpleNamespace(n=1)) == {"n": 1}
