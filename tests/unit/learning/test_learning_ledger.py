"""The facts of a config stay in step with what is stored, whoever is interrupted while writing."""

import asyncio

import pytest

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import Conflict, Unavailable
from ringrift.learning.facts import Noted
from ringrift.learning.ledger import Ledger, read_facts
from ringrift.learning.window import BucketRules
from ringrift.testing.simulation import SimulatedRuntime, simulate

CONFIG = "connect_four_2p"


def note(text):
    return Noted(at_s=1.0, topic="test", text=text)


async def opened(engine):
    return await Ledger.open(engine.kv, CONFIG, bucket_rules=BucketRules())


def texts(facts):
    return [fact.text for fact in facts]


def in_a_world(scenario):
    async def main():
        engine = memory_engine(SimulatedRuntime(), MemoryStore())
        try:
            await scenario(engine)
        finally:
            await engine.close()

    simulate(main())


def test_a_writer_that_is_cancelled_after_its_fact_was_stored_does_not_stop_the_next():
    async def scenario(engine):
        ledger, create = await opened(engine), engine.kv.create

        async def slow(*args, **kwargs):
            await create(*args, **kwargs)
            await asyncio.sleep(10)

        engine.kv.create = slow
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ledger.append(note("first"))
        engine.kv.create = create
        await ledger.append(note("second"))
        assert texts(await read_facts(engine.kv, CONFIG)) == ["first", "second"]
        assert texts(ledger.state.notes) == ["first", "second"]

    in_a_world(scenario)


@pytest.mark.parametrize("stored", [True, False])
def test_after_an_answer_that_got_lost_the_same_fact_is_not_written_twice(stored):
    async def scenario(engine):
        ledger, create = await opened(engine), engine.kv.create

        async def away(*args, **kwargs):
            if stored:
                await create(*args, **kwargs)
            raise Unavailable("the database is locked")

        engine.kv.create = away
        with pytest.raises(Unavailable):
            await ledger.append(note("first"))
        engine.kv.create = create
        await ledger.append(note("second"))
        expected = ["first", "second"] if stored else ["second"]
        assert texts(await read_facts(engine.kv, CONFIG)) == expected
        assert texts(ledger.state.notes) == expected

    in_a_world(scenario)


def test_a_second_writer_collides_also_after_one_was_interrupted():
    async def scenario(engine):
        ledger, other, create = await opened(engine), await opened(engine), engine.kv.create

        async def away(*_args, **_kwargs):
            raise Unavailable("the database is locked")

        engine.kv.create = away
        with pytest.raises(Unavailable):
            await ledger.append(note("first"))
        engine.kv.create = create
        await other.append(note("the other's"))
        with pytest.raises(Conflict):
            await ledger.append(note("second"))
        assert texts(await read_facts(engine.kv, CONFIG)) == ["the other's"]

    in_a_world(scenario)
