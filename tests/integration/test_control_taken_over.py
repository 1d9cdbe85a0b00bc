"""A control process that was held up for longer than its lease, after another one took over."""

import asyncio
import signal

from loop_under_test import Killer, stop_between_writes, watched_loop

from ringrift.cli.command import EXIT_CONTROL_LOST, EXIT_WRONG_INPUT
from ringrift.learning.control_lease import control_holder


async def start_until_in_control(loop, kv):
    """As a person would who sees it refused: again, until the lease of the other has run out."""
    for _ in range(30):
        loop.start()
        while loop.is_up:
            holder = await control_holder(kv)
            if holder is not None and holder.pid == loop.process.pid:
                return
            await asyncio.sleep(0.05)
        assert loop.process.returncode == EXIT_WRONG_INPUT
    raise AssertionError(loop.last_words())


async def test_what_it_still_writes_is_refused_and_it_ends_with_the_reason(tmp_path):
    async with watched_loop(tmp_path, tiny=True) as (loop, audit):
        loop.variables["RINGRIFT_CONTROL_LEASE"] = "2"
        killer = Killer(loop, audit, seed=1, tiny=True)
        await start_until_in_control(loop, audit.engine.kv)
        await killer.goes_on()
        first = loop.process
        await stop_between_writes(first, audit.engine.kv)
        await start_until_in_control(loop, audit.engine.kv)
        second = loop.process
        await killer.goes_on()
        first.send_signal(signal.SIGCONT)
        code = await asyncio.to_thread(first.wait, 120)
        assert code == EXIT_CONTROL_LOST, loop.last_words()
        words = loop.log.read_text()
        assert f"process {second.pid} on" in words
        assert "took over" in words
        await killer.goes_on()
        assert await killer.finish() == []
