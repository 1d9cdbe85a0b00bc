"""Wrapped handlers: called with whatever event there is, limited, measured, and never raising."""

import asyncio

import pytest

from ringrift.coordination.event_buses import DataEvent
from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import WiredCoordinator
from ringrift.coordination.handler_resilience import (
    ResilientHandlerConfig,
    get_handler_metrics,
    make_handlers_resilient,
    reset_handler_metrics,
    resilient_handler,
)
from ringrift.errors import ConfigError
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.event import RouterEvent
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings

QUIET = ResilientHandlerConfig(emit_failure_events=False, emit_timeout_events=False)


@pytest.mark.parametrize(
    "event",
    [
        RouterEvent("TRAINING_COMPLETED", {"n": 1}),
        DataEvent(DataEventType.TRAINING_COMPLETED, {"n": 1}),
        {"event_type": "TRAINING_COMPLETED", "n": 1},
    ],
    ids=["RouterEvent", "DataEvent", "dict"],
)
async def test_the_wrapped_handler_is_called_with_every_kind_of_event(event):
    seen = []

    async def handle(given):
        seen.append(given)

    assert await resilient_handler(handle, "trainer", QUIET)(event) is True
    assert seen == [event]
    assert get_handler_metrics("trainer.handle").success_count == 1


async def test_it_works_at_the_router():
    seen = []

    async def handle(event):
        seen.append(event["n"])

    router = get_router()
    router.subscribe("CHECKPOINT_SAVED", resilient_handler(handle, "x", QUIET))
    await router.publish("CHECKPOINT_SAVED", {"n": 1})
    assert seen == [1]


async def test_failures_are_announced_and_counted():
    said = []

    def broken(event):
        raise ValueError("no")

    router = get_router()
    router.subscribe("HANDLER_FAILED", said.append)
    call = resilient_handler(broken, "trainer")
    for _ in range(2):
        assert await call(RouterEvent("TRAINING_COMPLETED")) is False
    metrics = get_handler_metrics()["trainer.broken"]
    assert (metrics.failure_count, metrics.consecutive_failures) == (2, 2)
    assert metrics.last_error == "ValueError: no"
    assert [(e["event_type"], e["coordinator"]) for e in said] == [("TRAINING_COMPLETED", "trainer")] * 2
    await router.stop()
    reset_handler_metrics()
    assert get_handler_metrics() == {}


async def test_a_slow_handler_is_cut_off_and_may_be_tried_again():
    calls = []

    async def slow(event):
        calls.append(1)
        await asyncio.sleep(60)

    limits = ResilientHandlerConfig(timeout_seconds=0.01, emit_timeout_events=False, retry_on_timeout=True)
    assert await resilient_handler(slow, config=limits)({}) is False
    assert len(calls) == 2
    assert get_handler_metrics("slow").timeout_count == 2


async def test_all_handlers_of_an_object():
    class Component:
        def __init__(self):
            self.seen = []

        async def _on_started(self, event):
            self.seen.append("started")

        def _on_failed(self, event):
            raise ValueError

        def other(self, event):
            raise ValueError

    component = Component()
    assert make_handlers_resilient(component, "component", config=QUIET) == ["_on_failed", "_on_started"]
    assert await component._on_started({})
    assert not await component._on_failed({})
    assert component.seen == ["started"]
    assert set(get_handler_metrics()) == {"component._on_failed", "component._on_started"}


async def test_a_handler_that_is_wrapped_again_is_called_and_counted_once():
    class Component:
        def _on_failed(self, event):
            raise ValueError

    component = Component()
    for _ in range(2):
        make_handlers_resilient(component, "component", config=QUIET)
    assert not await component._on_failed({})
    metrics = get_handler_metrics("component._on_failed")
    assert (metrics.invocation_count, metrics.failure_count, metrics.success_count) == (1, 1, 0)


@pytest.mark.parametrize("wrong", [{"timeout_seconds": 0}, {"max_consecutive_failures": 0}], ids=str)
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(ConfigError):
        ResilientHandlerConfig(**wrong)


class Hears(WiredCoordinator):
    """A coordinator as the product has them, with a handler that fails and one that hangs."""

    def __init__(self, router):
        super().__init__("hears", router=router)
        self.heard = []

    def _hears(self):
        return {"CHECKPOINT_SAVED": self._on_failing, "BATCH_SCHEDULED": self._on_hanging}

    def _on_failing(self, event):
        self.heard.append("failing")
        raise ValueError("no")

    async def _on_hanging(self, event):
        self.heard.append("hanging")
        await asyncio.sleep(60)


async def test_the_router_does_for_coordinators_what_a_wrapped_handler_does_for_others():
    """Time limit, isolation, count and report; only, it also keeps the event and tries it again."""
    settings = load_settings({"RINGRIFT_EVENT_HANDLER_TIMEOUT": "0.05"}).settings
    router = UnifiedEventRouter(surroundings=Surroundings(settings=settings))
    coordinator, said, others = Hears(router), [], []
    coordinator.wire()
    for name in ("HANDLER_FAILED", "HANDLER_TIMEOUT"):
        router.subscribe(name, said.append, f"reports of {name}")
        get_router().subscribe(name, said.append, f"reports of {name}")
    for name in ("CHECKPOINT_SAVED", "BATCH_SCHEDULED"):
        router.subscribe(name, others.append, f"another that hears {name}")
        await router.publish(name)
    wrapped, limits = Hears(router), ResilientHandlerConfig(timeout_seconds=0.05)
    make_handlers_resilient(wrapped, "hears", config=limits)
    assert not await wrapped._on_failing(RouterEvent("CHECKPOINT_SAVED"))
    assert not await wrapped._on_hanging(RouterEvent("BATCH_SCHEDULED"))
    assert coordinator.heard == wrapped.heard == ["failing", "hanging"]
    assert [event.event_type for event in others] == ["CHECKPOINT_SAVED", "BATCH_SCHEDULED"]
    by_router, by_wrapper = said[:2], said[2:]
    for event, same in zip(by_router, by_wrapper, strict=True):
        assert (event.event_type, event["event_type"]) == (same.event_type, same["event_type"])
    assert ["no" in str(event["error"]) for event in said[::2]] == [True, True]
    stats = router.get_stats()
    assert (stats["handler_failures"], stats["handler_timeouts"]) == (1, 1)
    await router.stop()
    await get_router().stop()
