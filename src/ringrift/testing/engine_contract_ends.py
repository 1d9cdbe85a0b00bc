"""Promises of the work queue: how items end, and how a reader sees every end once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringrift.engine.ports import NewWork, WorkItem, WorkQueue, WorkState
from ringrift.testing.engine_contract_claims import ANY, LEASE_S, add, item, must_claim

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


async def ends(queue: WorkQueue, *, after: int = 0, limit: int = 100) -> list[tuple[str, WorkState]]:
    return [(end.item.id, end.item.state) for end in await queue.ended(after=after, limit=limit)]


class EndsContract:
    """Ends."""

    async def test_all_that_has_not_ended_is_seen_page_by_page(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        assert await queue.unended(after=0, limit=10) == []
        await queue.add([NewWork(kind="k", id=name, priority=1) for name in ("done", "dead", "held")])
        await add(queue, id="ready")
        await add(queue, id="delayed", delay_s=100)
        await add(queue, id="blocked", after=("delayed", "done"), payload={"n": 1})
        await add(queue, id="doomed", after=("dead",))
        done, dead, _ = await queue.claim(ANY, lease_s=LEASE_S, limit=3)
        await queue.complete("done", token=done.token)
        await queue.fail("dead", token=dead.token, error="e", final=True)
        found: list[WorkItem] = []
        after = 0
        while page := await queue.unended(after=after, limit=3):
            found += [each for _, each in page]
            after = page[-1][0]
        assert [(each.id, each.state) for each in found] == [
            ("held", WorkState.CLAIMED),
            ("ready", WorkState.READY),
            ("delayed", WorkState.READY),
            ("blocked", WorkState.BLOCKED),
        ]
        assert found[-1].payload == {"n": 1}

    async def test_a_final_failure_is_not_tried_again(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, attempts_max=5)
        await add(queue, id="dependent", after=(item_id,))
        claim = await must_claim(queue)
        state = await queue.fail(item_id, token=claim.token, error="wrong input", final=True)
        assert state is WorkState.DEAD
        dead = await item(queue, item_id)
        assert (dead.state, dead.error, dead.attempts) == (WorkState.DEAD, "wrong input", 1)
        assert (await item(queue, "dependent")).state is WorkState.DEAD

    async def test_every_way_to_end_is_seen_in_its_order(self, bench: EngineBench) -> None:
        queue, reader = (await bench.open()).queue, (await bench.open()).queue
        assert await reader.ended(after=0, limit=10) == []
        await queue.add(
            [NewWork(kind="k", id=name, attempts_max=1) for name in ("done", "failed", "expired")]
        )
        for name in ("cancelled", "needed"):
            await add(queue, id=name, priority=-1)
        await add(queue, id="dependent", after=("needed",))
        done, failed, _ = await queue.claim(ANY, lease_s=LEASE_S, limit=3)
        await queue.complete("done", token=done.token, result={"n": 1})
        await queue.fail("failed", token=failed.token, error="e")
        await queue.cancel("cancelled", reason="r")
        await queue.cancel("needed", reason="r")
        await add(queue, id="born dead", after=("failed",))
        await bench.pass_time(LEASE_S + 1)
        found = await reader.ended(after=0, limit=100)
        assert [(end.item.id, end.item.state) for end in found] == [
            ("done", WorkState.DONE),
            ("failed", WorkState.DEAD),
            ("cancelled", WorkState.CANCELLED),
            ("needed", WorkState.CANCELLED),
            ("dependent", WorkState.DEAD),
            ("born dead", WorkState.DEAD),
            ("expired", WorkState.DEAD),
        ]
        assert found[0].item.result == {"n": 1}
        assert [end.number for end in found] == sorted({end.number for end in found})

    async def test_an_end_is_waited_for(self, bench: EngineBench) -> None:
        queue, reader = (await bench.open()).queue, (await bench.open()).queue
        assert await reader.ended(after=0, limit=10, wait_s=0.01) == []
        await queue.add([NewWork(kind="k", id=name, attempts_max=1) for name in ("done", "expired")])
        claim, _ = await queue.claim(ANY, lease_s=LEASE_S, limit=2)
        waiting = asyncio.ensure_future(reader.ended(after=0, limit=10, wait_s=100))
        await bench.settle()
        assert not waiting.done(), "a claim is no end"
        await queue.complete("done", token=claim.token)
        (done,) = await waiting
        assert done.item.id == "done"
        waiting = asyncio.ensure_future(reader.ended(after=done.number, limit=10, wait_s=100))
        await bench.settle()
        await bench.pass_time(LEASE_S + 1)
        await queue.expire()
        (expired,) = await waiting
        assert (expired.item.id, expired.item.state) == ("expired", WorkState.DEAD)

    async def test_what_is_tried_again_has_not_ended(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue)
        claim = await must_claim(queue)
        await queue.release(item_id, token=claim.token)
        claim = await must_claim(queue)
        await queue.fail(item_id, token=claim.token, error="e")
        await must_claim(queue)
        await bench.pass_time(LEASE_S + 1)
        assert await ends(queue) == []

    async def test_a_revived_item_ends_once_more(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, attempts_max=1)
        claim = await must_claim(queue)
        await queue.fail(item_id, token=claim.token, error="e")
        (first,) = await queue.ended(after=0, limit=10)
        await queue.revive(item_id)
        assert await ends(queue) == []
        claim = await must_claim(queue)
        await queue.complete(item_id, token=claim.token)
        assert await ends(queue, after=first.number) == [(item_id, WorkState.DONE)]
        assert await ends(queue) == [(item_id, WorkState.DONE)]

    async def test_a_reader_with_a_cursor_meets_every_end_once(self, bench: EngineBench) -> None:
        queues = [(await bench.open()).queue for _ in range(3)]
        ids = await queues[0].add([NewWork(kind="k") for _ in range(40)])

        async def work(queue: WorkQueue) -> None:
            while claims := await queue.claim(ANY, lease_s=LEASE_S, limit=3):
                for claim in claims:
                    await queue.complete(claim.id, token=claim.token)

        async def read() -> list[str]:
            seen: list[str] = []
            after = 0
            while len(seen) < len(ids):
                found = await queues[2].ended(after=after, limit=7)
                seen += [end.item.id for end in found]
                after = found[-1].number if found else after
                await bench.settle()
            return seen

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            for queue in queues:
                tasks.create_task(work(queue))
        assert sorted(reading.result()) == sorted(ids)
