"""A control process that was held up for longer than its lease, after another one took over."""

import asyncio
import signal
from pathlib import Path

from loop_under_test import Killer, watched_loop

from ringrift.cli.command import EXIT_CONTROL_LOST, EXIT_WRONG_INPUT
from ringrift.errors import Unavailable
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


def has_stopped(pid):
    """Whether each of its threads has."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


async def stop_between_writes(process, kv):
    """One that is stopped while it writes keeps everybody from writing until it goes on; that is known."""
    for _ in range(30):
        process.send_signal(signal.SIGSTOP)
        while not has_stopped(process.pid):  # until then it may begin to write after all
            await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(3):
                await kv.put("test/stopped", b"")
                return
        except (TimeoutError, Unavailable):
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)
    raise AssertionError("it is always writing")


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
