"""Promises of the work queue: all of them, with adding, dependencies, cancelling, and how items end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ringrift.engine.ports import Claimant, NewWork, WorkItem, WorkQueue, WorkState, WriteGuard
from ringrift.errors import AlreadyExists, ConfigError, Conflict, LeaseLost
from ringrift.testing.claims_contract import (
    ANY,
    LEASE_S,
    HandingContract,
    HoldingContract,
    LeaseContract,
    add,
    claim_one,
    item,
    must_claim,
)

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


# Promises of the work queue: how items end, and how a reader sees every end once.


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


# Promises of the work queue: all of them, with adding, dependencies and cancelling.


class WorkQueueContract(HandingContract, HoldingContract, LeaseContract, EndsContract):
    """One test per promise."""

    async def test_a_second_add_under_a_key_returns_the_first(self, bench: EngineBench) -> None:
        first, second = (await bench.open()).queue, (await bench.open()).queue
        ids = await first.add(
            [NewWork(kind="k", idempotency_key="x"), NewWork(kind="k", idempotency_key="x")]
        )
        assert ids[0] == ids[1]
        claim = await must_claim(second)
        await second.complete(claim.id, token=claim.token)
        assert await second.add([NewWork(kind="other", idempotency_key="x")]) == ids[:1]
        assert await first.counts() == {"k": {WorkState.DONE: 1}}

    async def test_of_many_adds_under_a_key_one_is_stored(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).queue for _ in range(3)]
        ids = await asyncio.gather(*(add(handles[n % 3], idempotency_key="x") for n in range(9)))
        assert len(set(ids)) == 1

    async def test_orders_need_the_revision_of_their_guard(self, bench: EngineBench) -> None:
        engine = await bench.open()
        queue, guard = engine.queue, WriteGuard("role", await engine.kv.create("role", b"me"))
        await queue.add([NewWork(kind="k", id="a", attempts_max=1)], guard=guard)
        await engine.kv.put("role", b"another")
        with pytest.raises(LeaseLost):
            await queue.add([NewWork(kind="k", id="b")], guard=guard)
        with pytest.raises(LeaseLost):
            await queue.cancel("a", reason="late", guard=guard)
        claim = await must_claim(queue)
        await queue.fail("a", token=claim.token, error="no")
        with pytest.raises(LeaseLost):
            await queue.revive("a", guard=guard)
        assert await queue.counts() == {"k": {WorkState.DEAD: 1}}

    async def test_an_id_is_used_once(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, id="a")
        with pytest.raises(AlreadyExists):
            await queue.add([NewWork(kind="k", id="b"), NewWork(kind="k", id="a")])
        assert await queue.get("b") is None

    async def test_dependents_wait_until_all_they_need_is_done(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add(
            [
                NewWork(kind="k", id="a"),
                NewWork(kind="k", id="b"),
                NewWork(kind="k", id="c", after=("a", "b", "a"), priority=9),
            ]
        )
        assert (await item(queue, "c")).state is WorkState.BLOCKED
        for claim in await queue.claim(ANY, lease_s=LEASE_S, limit=10):
            assert claim.id in "ab"
            assert await claim_one(queue) is None
            await queue.complete(claim.id, token=claim.token)
        claim = await must_claim(queue)
        assert claim.id == "c"
        # What is done already holds up nobody.
        await add(queue, id="d", after=("a",))
        assert (await must_claim(queue)).id == "d"

    async def test_a_waiting_claimant_gets_what_a_completion_freed(self, bench: EngineBench) -> None:
        queue, other = (await bench.open()).queue, (await bench.open()).queue
        await queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="b", after=("a",))])
        claim = await must_claim(queue)
        waiting = asyncio.create_task(other.claim(ANY, lease_s=LEASE_S, wait_s=30))
        await bench.settle()
        await queue.complete("a", token=claim.token)
        assert [c.id for c in await asyncio.wait_for(waiting, 30)] == ["b"]

    async def test_a_delay_still_holds_after_the_dependency(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="b", after=("a",), delay_s=50)])
        claim = await must_claim(queue)
        await queue.complete("a", token=claim.token)
        assert await claim_one(queue) is None
        await bench.pass_time(51)
        assert (await must_claim(queue)).id == "b"

    @pytest.mark.parametrize("how", ["dies", "cancelled"])
    async def test_what_needs_a_dead_item_dies_with_it(self, bench: EngineBench, how: str) -> None:
        queue = (await bench.open()).queue
        await queue.add(
            [
                NewWork(kind="k", id="a", attempts_max=1),
                NewWork(kind="k", id="b", after=("a",)),
                NewWork(kind="k", id="c", after=("b",)),
            ]
        )
        if how == "dies":
            claim = await must_claim(queue)
            await queue.fail("a", token=claim.token, error="broken")
        else:
            assert await queue.cancel("a", reason="not wanted")
        await add(queue, id="d", after=("c",))
        for name, needed in (("b", "a"), ("c", "b"), ("d", "c")):
            dead = await item(queue, name)
            assert dead.state is WorkState.DEAD
            assert dead.error is not None
            assert needed in dead.error

    async def test_an_unknown_dependency_is_refused(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        with pytest.raises(ConfigError, match="absent"):
            await queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", after=("absent",))])
        with pytest.raises(ConfigError, match="later"):
            await queue.add([NewWork(kind="k", id="b", after=("later",)), NewWork(kind="k", id="later")])
        assert await queue.counts() == {}

    async def test_a_cancelled_item_is_never_handed_out_nor_completed(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="b")])
        claim = await must_claim(queue)
        assert await queue.cancel("a", reason="superseded")
        assert await queue.cancel("b", reason="superseded")
        assert not await queue.cancel("b", reason="again")
        assert not await queue.cancel("absent", reason="x")
        assert await claim_one(queue) is None
        with pytest.raises(LeaseLost, match="cancelled"):
            await queue.complete("a", token=claim.token)
        assert (await item(queue, "a")).error == "superseded"

    async def test_a_revived_item_has_all_its_attempts(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, id="a", attempts_max=1)
        await queue.fail("a", token=(await must_claim(queue)).token, error="x")
        await queue.revive("a")
        revived = await item(queue, "a")
        assert (revived.state, revived.attempts, revived.error) == (WorkState.READY, 0, None)
        claim = await must_claim(queue)
        await queue.complete("a", token=claim.token)
        with pytest.raises(Conflict, match="done"):
            await queue.revive("a")
        with pytest.raises(ConfigError, match="absent"):
            await queue.revive("absent")

    async def test_a_dependent_is_revived_after_what_it_needs(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id="a", attempts_max=1), NewWork(kind="k", id="b", after=("a",))])
        await queue.fail("a", token=(await must_claim(queue)).token, error="x")
        with pytest.raises(Conflict, match="a that it needs"):
            await queue.revive("b")
        await queue.revive("a")
        await queue.revive("b")
        assert (await item(queue, "b")).state is WorkState.BLOCKED
        await queue.complete("a", token=(await must_claim(queue)).token)
        assert (await must_claim(queue)).id == "b"

    async def test_counts_by_kind_and_state(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="train", requires=frozenset(r)) for r in ((), ("gpu",))])
        await queue.add([NewWork(kind="play"), NewWork(kind="play", delay_s=9), NewWork(kind="play")])
        await queue.claim(Claimant(worker="w", kinds=frozenset({"play"})), lease_s=LEASE_S)
        assert await queue.counts() == {
            "train": {WorkState.READY: 2},
            "play": {WorkState.READY: 2, WorkState.CLAIMED: 1},
        }

    async def test_dead_letters_newest_first(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        for name in "abc":
            await add(queue, id=name, attempts_max=1)
            await queue.fail(name, token=(await must_claim(queue)).token, error="x")
            await bench.pass_time(1)
        assert [dead.id for dead in await queue.dead(limit=2)] == ["c", "b"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": ""},
            {"attempts_max": 0},
            {"delay_s": -1.0},
            {"payload": {"x": object()}},
            {"payload": {"x": "y" * 1_100_000}},
            {"priority": 2**40},
        ],
    )
    async def test_an_item_that_makes_no_sense_is_refused(
        self, bench: EngineBench, wrong: dict[str, Any]
    ) -> None:
        queue = (await bench.open()).queue
        with pytest.raises(ConfigError):
            await add(queue, **wrong)
        assert await queue.counts() == {}

    async def test_an_unknown_item_is_none(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        assert await queue.get("absent") is None
        with pytest.raises(LeaseLost, match="no such item"):
            await queue.complete("absent", token=1)
