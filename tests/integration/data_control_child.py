"""The processes that the tests of the data plane's control stop and kill. The first argument says what to do.

A line on stdout is written after the thing it tells of was acknowledged.
"""

import asyncio
import sys
from pathlib import Path

from ringrift.coordination.sync_durability import SyncWAL
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.data.transactions import TransactionLog
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import LeaseLost

FILES = ("one", "two", "three")


def say(*words):
    print(*words, flush=True)


async def append(kv):
    """Write games ahead, and hand every third over."""
    wal, number = SyncWAL(kv=kv), 0
    while True:
        name = await wal.append(f"game {number}", "here", "there", {"moves": [number]})
        say("appended", name)
        if number % 3 == 0:
            say("completing", name)
            await wal.mark_complete([name])
        number += 1


async def lock(kv):
    """Take a lock; then do what is asked, line by line."""
    mutex = SyncMutex(kv=kv, max_global=5)
    assert await mutex.acquire_async("host", timeout=3.0, wait=True)
    say("token", mutex.token("host"))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        try:
            token = mutex.token("host")
        except LeaseLost:
            token = None
        say("after", token, await mutex.heartbeat_async("host"), await mutex.release_async("host"))


async def merge(kv, folder):
    """Write one version after the other to several files at once."""
    log, version = TransactionLog(kv=kv), 1
    while True:
        name = await log.begin_async("here")
        for file in FILES:
            operation = await log.add_operation_async(name, "update", folder / file)
            Path(operation.staged_path).write_text(f"{version} " * 20_000)
            await log.complete_operation_async(name, operation.operation_id)
        assert await log.prepare_async(name)
        await log.commit_async(name)
        say("version", version)
        version += 1


async def main():
    role, *rest = sys.argv[1:]
    kv = (await get_engine()).kv
    try:
        await {"append": append, "lock": lock, "merge": merge}[role](kv, *map(Path, rest))
    finally:
        await close_engine()


asyncio.run(main())
