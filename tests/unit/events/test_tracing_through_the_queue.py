"""A trace goes with a job to the worker that claims it, in whichever process that is."""

from ringrift.engine.memory import memory_engine
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.events.tracing import continued, extract, get_trace_id, inject, span
from ringrift.runtime import SystemRuntime


async def carried(queue):
    with span("plan"):
        planned = get_trace_id()
        await queue.add([NewWork(kind="selfplay", trace=inject())])
    assert get_trace_id() is None
    [claim] = await queue.claim(Claimant(worker="w"), lease_s=60)
    with continued(extract(claim.trace)), span("play"):
        return planned, get_trace_id()


async def test_through_the_embedded_queue():
    planned, played = await carried((await get_engine()).queue)
    await close_engine()
    assert planned == played
    assert planned is not None


async def test_through_the_memory_queue():
    planned, played = await carried(memory_engine(SystemRuntime()).queue)
    assert planned == played
