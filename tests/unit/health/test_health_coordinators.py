"""The life of a coordinator, breakers and bounded collections."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.coordinator_base import CoordinatorBase, CoordinatorRegistry
from ringrift.coordination.utils import BoundedHistory, CallbackRegistry
from ringrift.errors import ConfigError
from ringrift.health.breakers import BreakerConfig, BreakerState, CircuitBreaker
from ringrift.status import CoordinatorStatus


class Traced(CoordinatorBase):
    def __init__(self, name="traced", *, fail_in="", hang=False):
        super().__init__(name)
        self.calls, self.fail_in, self.hang = [], fail_in, hang

    async def _note(self, what):
        self.calls.append(what)
        if what == self.fail_in:
            raise RuntimeError(f"{what} went wrong")

    async def _do_initialize(self):
        await self._note("initialize")

    async def _do_start(self):
        await self._note("start")

    async def _do_stop(self):
        assert self.status is CoordinatorStatus.DRAINING
        await self._note("stop")
        if self.hang:
            await asyncio.Event().wait()

    async def _do_cleanup(self):
        await self._note("cleanup")


async def test_a_life_in_order_and_every_step_once():
    coordinator = Traced()
    assert coordinator.status is CoordinatorStatus.INITIALIZING
    await coordinator.start()
    await coordinator.start()
    assert coordinator.status is CoordinatorStatus.RUNNING
    await coordinator.pause()
    assert coordinator.health_check().status is CoordinatorStatus.PAUSED
    await coordinator.resume()
    await coordinator.stop()
    await coordinator.stop()
    assert coordinator.status is CoordinatorStatus.STOPPED
    assert not coordinator.health_check().healthy
    await coordinator.start()
    await coordinator.shutdown()
    assert coordinator.calls == ["initialize", "start", "stop", "start", "stop", "cleanup"]


async def test_a_failing_hook_reaches_the_caller_and_shows_in_the_status():
    coordinator = Traced(fail_in="start")
    with pytest.raises(RuntimeError, match="start went wrong"):
        await coordinator.start()
    assert coordinator.status is CoordinatorStatus.ERROR
    assert not coordinator.health_check().healthy
    assert coordinator.get_metrics()["last_error"] == "start went wrong"


@pytest.mark.parametrize(
    ("good", "bad", "healthy"), [(0, 9, True), (0, 10, False), (91, 10, True), (90, 10, False)]
)
async def test_health_needs_both_many_errors_and_a_high_share(good, bad, healthy):
    coordinator = CoordinatorBase("worker")
    await coordinator.start()
    for _ in range(good):
        coordinator.record_operation()
    for _ in range(bad):
        coordinator.record_error("boom")
    assert coordinator.health_check().healthy is healthy


async def test_shutdown_goes_by_priority_then_newest_first():
    registry = CoordinatorRegistry()
    for name, priority in [("a", 0), ("late", 5), ("b", 0)]:
        registry.register(Traced(name), shutdown_priority=priority)
    assert registry.shutdown_order() == ["b", "a", "late"]
    assert await registry.shutdown_all() == {"b": True, "a": True, "late": True}


async def test_a_hanging_or_failing_coordinator_does_not_keep_the_others():
    registry = CoordinatorRegistry()
    for coordinator in (Traced("fine"), Traced("hangs", hang=True), Traced("fails", fail_in="stop")):
        await coordinator.start()
        registry.register(coordinator)
    outcome = await registry.shutdown_all(timeout=0.01)
    assert outcome == {"fails": False, "hangs": False, "fine": True}


async def test_shutdown_may_be_plain_and_one_that_fails_at_once_does_not_keep_the_others():
    class Plain:
        def __init__(self, name, error=None):
            self.name, self._error, self.ended = name, error, False

        def shutdown(self):
            if self._error:
                raise self._error
            self.ended = True

    registry, first, last = CoordinatorRegistry(), Plain("first"), Plain("last")
    for coordinator in (first, Plain("fails", ValueError("no")), last):
        registry.register(coordinator)
    assert await registry.shutdown_all() == {"last": True, "fails": False, "first": True}
    assert first.ended
    assert last.ended


@given(outcomes=st.lists(st.tuples(st.booleans(), st.floats(0, 200)), max_size=60))
def test_breaker_is_open_only_after_its_failures_in_a_row(outcomes):
    breaker, now, in_a_row = CircuitBreaker(BreakerConfig(failures_max=3)), 0.0, 0
    for succeeded, wait in outcomes:
        now += wait
        in_a_row = 0 if succeeded else in_a_row + 1
        breaker = breaker.succeeded() if succeeded else breaker.failed(now)
        assert (breaker.state(now) is BreakerState.CLOSED) == (in_a_row < 3)


def test_breaker_waits_longer_after_each_failed_trial_and_closes_on_success():
    breaker = CircuitBreaker(BreakerConfig(failures_max=1, cooldown_s=10, cooldown_s_max=25))
    breaker = breaker.failed(0.0)
    assert not breaker.allows(9.9)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    breaker = breaker.failed(10.0)
    assert not breaker.allows(29.9)
    assert breaker.allows(30.0)
    breaker = breaker.failed(30.0)
    assert breaker.allows(55.0)
    assert breaker.succeeded().state(55.0) is BreakerState.CLOSED


def test_breaker_refuses_unsafe_numbers():
    with pytest.raises(ConfigError):
        BreakerConfig(failures_max=0)


@given(items=st.lists(st.integers()), size=st.integers(1, 20))
def test_history_keeps_the_newest(items, size):
    history = BoundedHistory(size)
    for item in items:
        history.append(item)
    assert list(history) == items[-size:]
    assert history.dropped == max(0, len(items) - size)
    assert history.recent(3) == list(history)[-3:]


def test_callbacks_are_told_once_and_can_leave():
    seen, registry = [], CallbackRegistry()
    leave = registry.register("changed", seen.append)
    registry.register("changed", seen.append)
    assert registry.notify("changed", 1) == 1
    leave()
    assert registry.notify("changed", 2) == 0
    assert seen == [1]
