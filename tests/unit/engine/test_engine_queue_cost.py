"""Looking at the queue costs the same with a hundred items and with a hundred thousand."""

import asyncio
import re
import sqlite3
from dataclasses import replace

import pytest

from ringrift.engine.limits import EngineLimits
from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.engine.sqlite import queries as sql

ASKED_OFTEN = {
    "counts": (sql.COUNTS, ()),
    "size": (sql.COUNT_WORK, ()),
    "get": (sql.GET_WORK, ("a",)),
    "claimed": (sql.CLAIMED, (10,)),
    "dead": (sql.DEAD, (10,)),
    "ended": (sql.ENDED, (0, 10)),
    "best of a lane": (sql.READY_IN_LANE, (1, 10)),
    "next due": (sql.NEXT_DUE_WORK, ()),
    "due": (sql.DUE_WORK, (0.0, 10)),
}


@pytest.mark.parametrize("asked", ASKED_OFTEN)
async def test_no_question_reads_the_whole_table(config, opened, asked):
    engine = await opened(config)
    await engine.queue.add([NewWork(kind="k", id="a")])
    db = sqlite3.connect(config.database)
    try:
        query, parameters = ASKED_OFTEN[asked]
        plan = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]
    finally:
        db.close()
    whole = [step for step in plan if re.match(r"SCAN work( |$)(?!USING)|USE TEMP B-TREE FOR ORDER", step)]
    assert whole == [], plan


async def test_counts_follow_what_retention_drops(config, opened, runtime):
    engine = await opened(replace(config, upkeep_s=0.02, limits=EngineLimits(age_grace_s=1e-3)))
    await engine.queue.add([NewWork(kind="k", id=name) for name in "abc"])
    [claim] = await engine.queue.claim(Claimant(worker="w"), lease_s=30)
    await engine.queue.complete(claim.id, token=claim.token)
    runtime.advance(400 * 24 * 3600.0)
    async with asyncio.timeout(30):
        while await engine.queue.counts() != {"k": {WorkState.READY: 2}}:
            await asyncio.sleep(0.01)
