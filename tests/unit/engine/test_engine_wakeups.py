"""Nobody is woken for what nobody there waits for."""

import asyncio

import pytest

from ringrift.engine.sqlite.store import Wakeups
from ringrift.engine.waiting import EVENTS, KV, QUEUE, Topics
from ringrift.runtime import SystemRuntime


class CountedTopics(Topics):
    def __init__(self):
        super().__init__()
        self.woken = []

    def wake(self, topics):
        self.woken += topics
        super().wake(topics)


@pytest.fixture
def process(tmp_path):
    """Makes what a process has of its own to wake and be woken."""
    opened = []

    def make():
        topics = CountedTopics()
        opened.append(Wakeups(tmp_path / "wakeups", topics))
        return opened[-1], topics

    yield make
    for wakeups in opened:
        wakeups.close()


async def test_only_changes_of_the_topics_that_are_waited_for_arrive(process):
    writer, _ = process()
    reader, topics = process()
    with reader.listening(EVENTS) as waiter, reader.listening(QUEUE):
        for _ in range(100):
            writer.announce({KV})
        writer.announce({KV, EVENTS})
        async with asyncio.timeout(60):
            await waiter.wait(SystemRuntime(), 100)
    assert topics.woken == [EVENTS]


async def test_whoever_listens_to_two_topics_hears_of_both(process):
    writer, _ = process()
    reader, _ = process()
    with reader.listening(EVENTS) as events, reader.listening(QUEUE) as queue:
        writer.announce({QUEUE, EVENTS})
        async with asyncio.timeout(60):
            await events.wait(SystemRuntime(), 100)
            await queue.wait(SystemRuntime(), 100)
