"""Waiting for the first of several: the others are ended, and no error is lost."""

import asyncio

import pytest

from ringrift.runtime import first_of, result_before


class Wait:
    """Goes on for ever, and knows whether it was ended."""

    def __init__(self):
        self.ended = False

    async def __call__(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def give(value):
    await asyncio.sleep(0)
    return value


async def fail():
    raise ValueError("out of paper")


async def test_work_that_comes_first_gives_its_result_and_ends_the_others():
    other = Wait()
    assert await result_before(give(3), other()) == 3
    assert other.ended


async def test_work_that_comes_later_is_ended_and_gives_nothing():
    work = Wait()
    assert await result_before(work(), give(3)) is None
    assert work.ended


async def test_work_that_is_done_in_the_same_moment_counts():
    assert await result_before(give(3), give(4)) == 3


@pytest.mark.parametrize("order", [(fail, Wait()), (Wait(), fail)])
async def test_an_error_of_any_ends_all_and_is_raised_as_it_is(order):
    with pytest.raises(ValueError, match="out of paper"):
        await result_before(*(each() for each in order))
    assert all(each.ended for each in order if isinstance(each, Wait))


async def test_whoever_waits_can_be_cancelled():
    one, other = Wait(), Wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await first_of(one(), other())
    assert one.ended
    assert other.ended


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_an_error_in_the_moment_of_a_cancellation_does_not_swallow_it(steps):
    gate = asyncio.Event()

    async def work():
        await gate.wait()
        await fail()

    async def serve():
        """As a slot of a worker: errors of the engine are no reason to end, a cancellation is."""
        while True:
            try:
                await result_before(work(), Wait()())
            except ValueError:
                gate.clear()

    async with asyncio.timeout(30):
        serving = asyncio.create_task(serve())
        await asyncio.sleep(0.01)
        gate.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait({serving})
    assert serving.cancelled()
