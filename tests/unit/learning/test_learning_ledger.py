"""The facts of a config stay in step with what is stored, whoever is interrupted while writing."""

import asyncio
import json
import threading

import pytest

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import Conflict, Corrupt, Unavailable
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.ledger import Ledger, prefix_of, read_facts
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import ConfigState
from ringrift.runtime import system_runtime
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


TURN_S_MAX = 60.0  # only a loop that is blocked is waited for that long


class _LoopTurns:
    """Asks, from wherever it is called, for one turn of the loop, and counts those that came."""

    def __init__(self):
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self.asked = self.came = 0

    def one(self):
        self.asked += 1
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        on_loop = threading.get_ident() == self._loop_thread
        self.came += not on_loop and turned.wait(TURN_S_MAX)


class _Watched(list):
    """Entries, each of which lets the loop have a turn before it is looked at."""

    turns: _LoopTurns

    def __iter__(self):
        for entry in super().__iter__():
            self.turns.one()
            yield entry


async def test_the_loop_has_turns_while_facts_are_read_and_added_up(monkeypatch):
    engine = memory_engine(system_runtime(), MemoryStore())
    ledger, turns = await opened(engine), _LoopTurns()
    for number in range(5):
        await ledger.append(note(f"fact {number}"))
    entries, apply = engine.kv.entries, ConfigState.apply

    async def watched_entries(prefix):
        found = _Watched(await entries(prefix))
        found.turns = turns
        return found

    def watched_apply(state, fact):
        turns.one()
        apply(state, fact)

    monkeypatch.setattr(engine.kv, "entries", watched_entries)
    monkeypatch.setattr(ConfigState, "apply", watched_apply)
    again = await opened(engine)
    await engine.close()
    assert texts(again.state.notes) == [f"fact {number}" for number in range(5)]
    assert (turns.asked, turns.came) == (10, 10), "once for each fact read, once for each taken in"


# --- damage -------------------------------------------------------------------------------------------------


async def three_facts(engine):
    ledger = await opened(engine)
    for text in ("first", "second", "third"):
        await ledger.append(note(text))
    return await engine.kv.entries(prefix_of(CONFIG))


def in_an_old_version(entry):
    """As versions without hashes stored it."""
    fact = json.loads(entry.value)
    del fact["chain"]
    return json.dumps(fact).encode()


async def change_a_text(kv, entries):
    await kv.put(entries[1].key, entries[1].value.replace(b"second", b"decond"))


async def change_a_hash(kv, entries):
    value = entries[1].value
    await kv.put(entries[1].key, value[:-3] + (b"0" if value[-3:-2] != b"0" else b"1") + value[-2:])


async def lose_a_hash(kv, entries):
    await kv.put(entries[1].key, in_an_old_version(entries[1]))


async def exchange_two(kv, entries):
    await kv.put(entries[1].key, entries[2].value)
    await kv.put(entries[2].key, entries[1].value)


async def lose_one(kv, entries):
    await kv.delete(entries[1].key)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (change_a_text, f"fact 2 of {CONFIG} is not what was written"),
        (change_a_hash, f"fact 2 of {CONFIG} is not what was written"),
        (lose_a_hash, f"fact 2 of {CONFIG} is not what was written: it has lost its hash"),
        (exchange_two, f"fact 2 of {CONFIG} is not what was written"),
        (lose_one, f"fact 2 of {CONFIG} is missing"),
    ],
)
def test_a_fact_that_is_not_what_was_written_is_refused_by_its_number(damage, told):
    async def scenario(engine):
        await damage(engine.kv, await three_facts(engine))
        for read in (lambda: read_facts(engine.kv, CONFIG), lambda: opened(engine)):
            with pytest.raises(Corrupt, match=told):
                await read()

    in_a_world(scenario)


def test_facts_of_earlier_versions_are_covered_by_the_next_that_is_written():
    async def scenario(engine):
        for entry in await three_facts(engine):
            await engine.kv.put(entry.key, in_an_old_version(entry))
        ledger = await opened(engine)
        assert texts(ledger.state.notes) == ["first", "second", "third"]
        await ledger.append(note("fourth"))
        assert texts(await read_facts(engine.kv, CONFIG)) == ["first", "second", "third", "fourth"]
        first = (await engine.kv.entries(prefix_of(CONFIG)))[0]
        await engine.kv.put(first.key, first.value.replace(b"first", b"fist "))
        with pytest.raises(Corrupt, match=f"one of the facts 1 to 4 of {CONFIG} is not what was written"):
            await opened(engine)

    in_a_world(scenario)
