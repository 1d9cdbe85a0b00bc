"""A handler ends when it is told to, or it is left: it holds neither its publisher nor anybody else."""

import asyncio

import pytest

from ringrift.events.delivery import Dispatcher, IgnoredCancellation, await_ending, finish
from ringrift.events.unified_router import UnifiedEventRouter

LIMIT_S = 30  # for what hangs
# A coroutine that catches the very order to close is reported when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


over = asyncio.Event()  # the test is over: let go


async def swallows():
    while not over.is_set():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def swallows_everything():
    while not over.is_set():
        try:
            await asyncio.sleep(3600)
        except BaseException:
            continue


async def waits_for_a_task_that_swallows():
    await asyncio.create_task(swallows())


async def waits_behind_a_shield():
    try:
        await asyncio.shield(asyncio.create_task(asyncio.sleep(3600)))
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(asyncio.sleep(3600)))


async def spins():
    while not over.is_set():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue


STUBBORN = [swallows, swallows_everything, waits_for_a_task_that_swallows, waits_behind_a_shield, spins]


@pytest.fixture(autouse=True)
async def tidy():
    """End what a stubborn handler left behind, or the loop would wait for it."""
    over.clear()
    yield
    over.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.fixture
def quick(monkeypatch):
    """A router whose handlers have little time to clean up."""
    real = Dispatcher.__init__

    def impatient(self, **given):
        real(self, **given, grace_s=0.05)

    monkeypatch.setattr(Dispatcher, "__init__", impatient)
    return UnifiedEventRouter()


@pytest.mark.parametrize("stubborn", STUBBORN)
async def test_a_handler_that_swallows_cancellation_does_not_hold_its_publisher(quick, stubborn):
    heard = []

    async def handle(event):
        if event.payload["n"] == 1:
            await stubborn()
        heard.append(event.payload["n"])

    async def bystander(event):
        heard.append("bystander")

    quick.subscribe("CHECKPOINT_SAVED", handle, "stubborn", timeout=0.05)
    quick.subscribe("CHECKPOINT_SAVED", bystander, "bystander")
    async with asyncio.timeout(LIMIT_S):
        await quick.publish("CHECKPOINT_SAVED", {"n": 1})
    assert heard == ["bystander"]
    health = quick.health_check()
    assert not health.healthy
    assert "stubborn is stuck: timed out after 0.05 s; it ignored its cancellation" in health.message
    assert quick.get_stats()["handler_timeouts"] == 1
    async with asyncio.timeout(LIMIT_S):
        await quick.publish("CHECKPOINT_SAVED", {"n": 2})  # the next one is handled as ever
    assert heard == ["bystander", 2, "bystander"]
    assert quick.health_check().healthy
    await quick.stop()


@pytest.mark.parametrize("stubborn", STUBBORN)
async def test_a_publisher_that_is_cancelled_ends_whatever_its_handlers_do(quick, stubborn):
    begun = asyncio.Event()

    async def handle(event):
        begun.set()
        await stubborn()

    quick.subscribe("CHECKPOINT_SAVED", handle)
    publishing = asyncio.create_task(quick.publish("CHECKPOINT_SAVED", {}))
    await begun.wait()
    publishing.cancel()
    done, _ = await asyncio.wait({publishing}, timeout=LIMIT_S)
    assert done
    assert publishing.cancelled()


@pytest.mark.parametrize("stubborn", STUBBORN)
async def test_the_router_stops_whatever_its_handlers_do(quick, stubborn, monkeypatch):
    monkeypatch.setattr("ringrift.events.unified_router.STOP_S", 0.05)

    async def first(event):
        await quick.publish("TASK_SPAWNED", {})  # left in the mailbox of a busy one

    async def handle(event):
        await stubborn()

    quick.subscribe("TASK_SPAWNED", handle)
    quick.subscribe("CHECKPOINT_SAVED", first)
    publishing = [asyncio.create_task(quick.publish("CHECKPOINT_SAVED", {})) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in publishing:
        task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await quick.stop()
        await asyncio.gather(*publishing, return_exceptions=True)


# --- driving is like awaiting ----------------------------------------------------------------------------


async def driven(coroutine):
    try:
        pending = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return await finish((coroutine, pending), grace_s=LIMIT_S)


async def test_what_it_waits_for_and_returns_and_raises_is_as_if_it_were_awaited():
    async def returns():
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return await asyncio.create_task(asyncio.sleep(0.001, "value"))

    async def raises():
        await asyncio.sleep(0.001)
        raise ValueError("x")

    async def hears_of_an_error():
        failing = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, KeyError("k"))
        try:
            await failing
        except KeyError:
            return "heard"

    assert await driven(returns()) == "value"
    assert await driven(hears_of_an_error()) == "heard"
    with pytest.raises(ValueError, match="x"):
        await driven(raises())


async def test_a_cancelled_one_may_clean_up_and_wait_for_that():
    cleaned = []

    async def cleans_up():
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    task = asyncio.create_task(driven(cleans_up()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)
    assert cleaned == [1]


async def test_its_own_time_limits_work():
    async def limited():
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(3600)
        except TimeoutError:
            return "in time"

    assert await driven(limited()) == "in time"
    assert asyncio.current_task().cancelling() == 0


async def test_a_handler_whose_own_time_limit_ended_a_wait_may_go_on(quick):
    done = []

    async def tries_again(_event):
        try:
            async with asyncio.timeout(0.01):
                await asyncio.create_task(asyncio.sleep(3600))
        except TimeoutError:
            await asyncio.sleep(0.2)  # longer than a cancelled handler has to clean up
            await asyncio.create_task(asyncio.sleep(0))
            done.append(1)

    quick.subscribe("MY_EVENT", tries_again)
    await quick.publish("MY_EVENT", {})
    assert done == [1]


async def test_each_of_many_that_wait_has_its_own_time_limit(quick):
    ended = []

    def handler(name, seconds):
        async def handle(_event):
            await asyncio.sleep(seconds)
            ended.append(name)

        return handle

    quick.subscribe("A", handler("a", 0.05), timeout=LIMIT_S)
    quick.subscribe("B", handler("b", 3600), timeout=0.02)
    quick.subscribe("C", handler("c", 3600), timeout=0.04)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(quick.publish(name, {}) for name in "ABC"))
    assert ended == ["a"]
    assert quick.get_stats()["handler_timeouts"] == 2


async def test_a_wait_for_something_foreign_is_an_error_of_the_handler():
    class Odd:
        def __await__(self):
            yield "odd"

    with pytest.raises(RuntimeError, match="str"):
        await driven(await_odd(Odd()))


async def await_odd(odd):
    await odd


@pytest.mark.parametrize("stubborn", STUBBORN)
async def test_a_time_limit_around_it_holds(stubborn, monkeypatch):
    monkeypatch.setattr("ringrift.events.delivery.GRACE_S", 0.05)
    monkeypatch.setattr(finish, "__kwdefaults__", {"grace_s": 0.05})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await await_ending(stubborn())
    assert asyncio.current_task().cancelling() == 0
    assert issubclass(IgnoredCancellation, TimeoutError)
