"""Watching costs the same after an hour of other keys' changes as at the start."""

import asyncio
from contextlib import aclosing

OTHERS = 2_000
STEPS_MAX = 2_000  # of SQLite's machine for one look; walking the other keys takes ten times as many


async def test_a_watch_passes_over_what_other_keys_changed_only_once(config, opened):
    steps = []
    engine = await opened(config)
    for number in range(OTHERS):
        await engine.kv.put(f"other/{number}", b"")
    async with aclosing(engine.kv.watch("mine/", after=0)) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.2)  # the first look walks them all
        for db in engine.kv._store._connections:
            db.set_progress_handler(lambda: steps.append(1), 10)
        await engine.kv.put("other/again", b"")
        await engine.kv.put("mine/one", b"1")
        async with asyncio.timeout(30):
            assert (await waiting).key == "mine/one"
    assert 10 * len(steps) < STEPS_MAX
