"""Promises of the work queue: all of them, with adding, dependencies, cancelling, and how items end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ringrift.engine.leases import lease_key
from ringrift.engine.ports import (
    Claim,
    Claimant,
    Completion,
    Engine,
    NewWork,
    WorkItem,
    WorkQueue,
    WorkState,
    WriteGuard,
)
from ringrift.engine.work_rules import ALL_WORK, hold_key, work_lease
from ringrift.errors import AlreadyExists, ConfigError, Conflict, LeaseLost

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


# --- claims -------------------------------------------------------------------------------------------
#
# Promises of the work queue: handing out, leases and tokens.


ANY = Claimant(worker="w")  # may do all that asks for nothing special
LEASE_S = 30.0  # so long that a slow machine does not lose a claim between two lines of a test


async def add(queue: WorkQueue, **fields: Any) -> str:
    (item_id,) = await queue.add([NewWork(**{"kind": "selfplay", **fields})])
    return item_id


async def claim_one(queue: WorkQueue, claimant: Claimant = ANY, *, lease_s: float = LEASE_S) -> Claim | None:
    claims = await queue.claim(claimant, lease_s=lease_s)
    return claims[0] if claims else None


async def must_claim(queue: WorkQueue, claimant: Claimant = ANY, *, lease_s: float = LEASE_S) -> Claim:
    claim = await claim_one(queue, claimant, lease_s=lease_s)
    assert claim is not None
    return claim


async def item(queue: WorkQueue, item_id: str) -> WorkItem:
    found = await queue.get(item_id)
    assert found is not None
    return found


class HoldingContract:
    """What is held is not handed out, whoever asks."""

    async def test_work_of_a_held_group_waits_and_other_work_goes_on(self, bench: EngineBench) -> None:
        engine, other = await bench.open(), await bench.open()
        # first in line, so that it must be passed over
        await add(engine.queue, id="ours", group="hex8_2p", priority=9)
        await add(engine.queue, id="theirs", group="square8_2p")
        await add(engine.queue, id="nobodys")
        await other.kv.put(hold_key("hex8_2p"), b"{}")
        claims = await engine.queue.claim(ANY, lease_s=LEASE_S, limit=9)
        assert [claim.id for claim in claims] == ["theirs", "nobodys"]
        assert [waiting.id for waiting in await engine.queue.ready()] == ["ours"]
        await other.kv.delete(hold_key("hex8_2p"))
        assert (await must_claim(engine.queue)).id == "ours"

    # A second handle opened later: an adapter that keeps the holds in memory would miss it.
    async def test_while_everything_is_held_nothing_is_handed_out(self, bench: EngineBench) -> None:
        engine, later = await bench.open(), await bench.open()
        await engine.kv.put(hold_key(ALL_WORK), b"{}")
        await add(engine.queue, id="a", group="hex8_2p")
        await add(engine.queue, id="b")
        assert await claim_one(engine.queue) is None
        assert await claim_one(later.queue) is None, "also to who came after"
        await later.kv.delete(hold_key(ALL_WORK))
        assert len(await engine.queue.claim(ANY, lease_s=LEASE_S, limit=9)) == 2

    async def test_what_is_claimed_already_may_go_on_and_comes_back_to_wait(self, bench: EngineBench) -> None:
        engine = await bench.open()
        await add(engine.queue, id="ends", group="g")
        await add(engine.queue, id="returns", group="g")
        ends, returns = await must_claim(engine.queue), await must_claim(engine.queue)
        await engine.kv.put(hold_key("g"), b"{}")
        await engine.queue.renew("ends", token=ends.token, lease_s=LEASE_S)
        await engine.queue.complete("ends", token=ends.token)
        await engine.queue.release("returns", token=returns.token)
        assert await claim_one(engine.queue) is None
        assert (await item(engine.queue, "returns")).state is WorkState.READY

    async def test_who_waits_is_woken_when_the_hold_ends(self, bench: EngineBench) -> None:
        worker, person = await bench.open(), await bench.open()
        await person.kv.put(hold_key("g"), b"{}")
        await add(person.queue, id="a", group="g")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.queue.claim(ANY, lease_s=LEASE_S, wait_s=600))
            await bench.settle()
            assert not waiting.done()
            await person.kv.delete(hold_key("g"))
            assert [claim.id for claim in await asyncio.wait_for(waiting, 30)] == ["a"]

    # Nobody writes anything when an entry runs out, so nothing wakes an adapter that only listens.
    async def test_a_hold_with_an_end_ends_by_itself(self, bench: EngineBench) -> None:
        engine = await bench.open()
        await engine.kv.put(hold_key("g"), b"{}", ttl_s=50)
        await add(engine.queue, id="a", group="g")
        assert await claim_one(engine.queue) is None
        await bench.pass_time(51)
        assert (await must_claim(engine.queue)).id == "a"

    async def test_work_that_somebody_does_under_a_lease_is_not_handed_out(self, bench: EngineBench) -> None:
        engine, other = await bench.open(), await bench.open()
        await add(engine.queue, id="ours", kind="train", group="odd/name", priority=9)
        await add(engine.queue, id="of another kind", group="odd/name")
        await add(engine.queue, id="of another group", kind="train", group="g")
        await add(engine.queue, id="nobodys", kind="train")
        # a slash, as names become part of keys
        await other.kv.create(lease_key(work_lease("odd/name", "train")), b"{}", ttl_s=50)
        claims = await engine.queue.claim(ANY, lease_s=LEASE_S, limit=9)
        assert [claim.id for claim in claims] == ["of another kind", "of another group", "nobodys"]
        assert await claim_one(engine.queue) is None
        await bench.pass_time(51)
        assert (await must_claim(engine.queue)).id == "ours"

    async def test_who_waits_is_woken_when_such_a_lease_is_given_back(self, bench: EngineBench) -> None:
        worker, person = await bench.open(), await bench.open()
        key = lease_key(work_lease("g", "train"))
        await person.kv.create(key, b"{}", ttl_s=600)
        await add(person.queue, id="a", kind="train", group="g")
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.queue.claim(ANY, lease_s=LEASE_S, wait_s=600))
            await bench.settle()
            assert not waiting.done()
            await person.kv.delete(key)
        assert [claim.id for claim in waiting.result()] == ["a"]

    @pytest.mark.parametrize("group", ["odd/name %2F", "é 🙂", "a*"])
    async def test_a_group_may_have_any_name(self, bench: EngineBench, group: str) -> None:
        engine = await bench.open()
        await add(engine.queue, id="a", group=group)
        await engine.kv.put(hold_key(group), b"{}")
        assert await claim_one(engine.queue) is None
        assert (await item(engine.queue, "a")).group == group

    @pytest.mark.parametrize("group", [ALL_WORK, "a\nb", 7, "é" * 100])
    async def test_a_group_that_could_not_be_held_is_refused(self, bench: EngineBench, group: Any) -> None:
        engine = await bench.open()
        with pytest.raises(ConfigError, match="group"):
            await add(engine.queue, group=group)

    async def test_an_item_says_why_it_waits(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, id="a", requires=frozenset({"gpu"}), node="n7", group="g")
        await add(queue, id="b")
        await add(queue, id="later", delay_s=60)
        await add(queue, id="needs", after=("b", "a"))
        await add(queue, id="needs too", after=("needs",))
        found = await item(queue, "a")
        assert (found.requires, found.node, found.group) == (frozenset({"gpu"}), "n7", "g")
        assert (found.not_before_s, found.waits_for) == (None, ())
        assert (await item(queue, "later")).not_before_s == pytest.approx(bench.now_s() + 60, abs=5)
        assert [each.id for each in await queue.blocked()] == ["needs", "needs too"]
        assert [each.waits_for for each in await queue.blocked(limit=1)] == [("a", "b")]
        claim = await must_claim(queue)
        await queue.complete(claim.id, token=claim.token)
        assert (await item(queue, "needs")).waits_for == ("a",)


class HandingContract:
    """Handing out."""

    async def test_an_item_travels_from_one_handle_to_another(self, bench: EngineBench) -> None:
        producer, worker = (await bench.open()).queue, (await bench.open()).queue
        item_id = await add(producer, payload={"games": 3, "name": "é"}, trace={"traceparent": "00-1"})
        claim = await must_claim(worker)
        assert (claim.id, claim.kind, claim.payload) == (item_id, "selfplay", {"games": 3, "name": "é"})
        assert (claim.attempt, claim.trace) == (1, {"traceparent": "00-1"})
        assert claim.lease_until_s == pytest.approx(bench.now_s() + LEASE_S, abs=5)
        held = await item(producer, item_id)
        assert (held.state, held.holder, held.token) == (WorkState.CLAIMED, "w", claim.token)
        await worker.complete(item_id, token=claim.token, result={"won": True})
        done = await item(producer, item_id)
        assert (done.state, done.result, done.holder) == (WorkState.DONE, {"won": True}, None)

    # More calls than items, from several handles at once: each item goes to exactly one.
    async def test_one_holder_at_a_time(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).queue for _ in range(4)]
        ids = await handles[0].add([NewWork(kind="k") for _ in range(40)])
        batches = await asyncio.gather(
            *(handles[n % 4].claim(ANY, lease_s=LEASE_S, limit=3) for n in range(20))
        )
        claimed = [claim.id for batch in batches for claim in batch]
        assert sorted(claimed) == sorted(ids)

    async def test_what_waits_is_listed_in_the_order_of_claiming(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        for name, priority, delay_s in (("a", 0, 0.0), ("b", 5, 0.0), ("c", 5, 0.0), ("later", 9, 60.0)):
            await add(queue, id=name, priority=priority, delay_s=delay_s)
        await add(queue, id="blocked", after=("a",))
        assert [item.id for item in await queue.ready()] == ["b", "c", "a"]
        assert [item.id for item in await queue.ready(limit=1)] == ["b"]
        await must_claim(queue)
        assert [item.id for item in await queue.ready()] == ["c", "a"]
        await bench.pass_time(61)
        assert [item.id for item in await queue.ready(limit=2)] == ["later", "b"]

    # By the end of the lease, soonest first: that is who may be lost.
    async def test_what_is_held_is_listed_with_its_holder(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id=name) for name in ("a", "b", "c", "d")])
        await add(queue, id="later", delay_s=60.0)
        assert await queue.claimed() == []
        first = await must_claim(queue, Claimant(worker="slow"), lease_s=2 * LEASE_S)
        await must_claim(queue, Claimant(worker="quick"), lease_s=LEASE_S)
        assert [(held.id, held.holder) for held in await queue.claimed()] == [("b", "quick"), ("a", "slow")]
        assert [held.id for held in await queue.claimed(limit=1)] == ["b"]
        await queue.complete("a", token=first.token)
        assert [held.id for held in await queue.claimed()] == ["b"]
        await bench.pass_time(LEASE_S + 1)
        assert await queue.claimed() == []

    async def test_higher_priority_first_then_arrival(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        ids = [await add(queue, id=name, priority=p) for name, p in (("a", 0), ("b", 5), ("c", 5), ("d", -1))]
        assert ids == ["a", "b", "c", "d"]
        claims = await queue.claim(ANY, lease_s=LEASE_S, limit=10)
        assert [claim.id for claim in claims] == ["b", "c", "a", "d"]

    # An adapter that keeps a list for each kind has to merge them by priority and arrival.
    async def test_order_holds_over_kinds_and_requirements(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, id="1", kind="export")
        await add(queue, id="2", kind="train", requires=frozenset({"gpu"}), priority=1)
        await add(queue, id="3", kind="export")
        await add(queue, id="4", kind="train")
        able = Claimant(worker="w", capabilities=frozenset({"gpu", "cpu"}))
        claims = await queue.claim(able, lease_s=LEASE_S, limit=3)
        assert [claim.id for claim in claims] == ["2", "1", "3"]

    async def test_a_claimant_needs_every_required_capability(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, requires=frozenset({"gpu", "torch"}))
        assert await claim_one(queue) is None
        assert await claim_one(queue, Claimant(worker="w", capabilities=frozenset({"gpu"}))) is None
        await must_claim(queue, Claimant(worker="w", capabilities=frozenset({"gpu", "torch", "x"})))

    async def test_an_item_for_a_node_goes_to_that_node(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, node="gpu-7")
        assert await claim_one(queue) is None
        assert await claim_one(queue, Claimant(worker="w", node="gpu-8")) is None
        await must_claim(queue, Claimant(worker="w", node="gpu-7"))

    async def test_a_claimant_may_ask_for_kinds(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, kind="train")
        assert await claim_one(queue, Claimant(worker="w", kinds=frozenset({"export"}))) is None
        # no kinds is none, not all
        assert await claim_one(queue, Claimant(worker="w", kinds=frozenset())) is None
        assert await claim_one(queue, Claimant(worker="w", except_kinds=frozenset({"train"}))) is None
        both = frozenset({"export", "train"})
        assert await claim_one(queue, Claimant(worker="w", kinds=both, except_kinds=both)) is None
        await must_claim(queue, Claimant(worker="w", kinds=both))

    async def test_a_delayed_item_comes_when_its_time_has(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, delay_s=10, priority=9)
        await add(queue, id="now")
        assert (await item(queue, item_id)).state is WorkState.READY
        assert (await must_claim(queue)).id == "now"
        assert await claim_one(queue) is None
        await bench.pass_time(11)
        assert (await must_claim(queue)).id == item_id

    async def test_waiting_ends_with_work_from_any_handle(self, bench: EngineBench) -> None:
        worker, producer = (await bench.open()).queue, (await bench.open()).queue
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.claim(ANY, lease_s=LEASE_S, wait_s=30))
            await bench.settle()
            item_id = await add(producer)
            (claim,) = await asyncio.wait_for(waiting, 30)
        assert claim.id == item_id

    async def test_waiting_ends_at_its_time_out(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        assert await queue.claim(ANY, lease_s=LEASE_S, wait_s=0.05) == []

    async def test_waiting_ends_with_a_delay_or_a_lease(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await add(queue, id="leased")
        await must_claim(queue, lease_s=300)  # so long that a slow machine does not reach it before its turn
        await add(queue, id="delayed", delay_s=10)
        for expected, after_s in (("delayed", 11), ("leased", 300)):
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(queue.claim(ANY, lease_s=5000, wait_s=500))
                await bench.settle()
                await bench.pass_time(after_s)
                (claim,) = await asyncio.wait_for(waiting, 120)
            assert claim.id == expected

    # One wake-up for all and one item each: nobody is forgotten, and nothing is handed out twice.
    async def test_of_many_who_wait_each_gets_its_own(self, bench: EngineBench) -> None:
        engines: list[Engine] = [await bench.open() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(engines[n % 3].queue.claim(ANY, lease_s=LEASE_S, wait_s=30))
                for n in range(9)
            ]
            await bench.settle()
            ids = await engines[0].queue.add([NewWork(kind="k") for _ in range(9)])
        claimed = [claim.id for claims in waiting for claim in claims.result()]
        assert sorted(claimed) == sorted(ids)


class LeaseContract:
    """Leases and tokens."""

    async def test_an_expired_item_is_handed_out_again_under_a_newer_token(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue)
        late = await must_claim(queue)
        await bench.pass_time(LEASE_S + 1)
        again = await must_claim(queue, Claimant(worker="other"))
        assert (again.id, again.attempt) == (item_id, 2)
        assert again.token > late.token

    async def test_a_late_claimant_is_refused_everything(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue)
        late = await must_claim(queue)
        await bench.pass_time(LEASE_S + 1)
        # Refused as soon as the lease is over, also while nobody else has it: the time counts, not the
        # successor.
        for claimed_again in (False, True):
            if claimed_again:
                await must_claim(queue)
            for call in (
                queue.complete(item_id, token=late.token),
                queue.fail(item_id, token=late.token, error="x"),
                queue.release(item_id, token=late.token),
                queue.renew(item_id, token=late.token, lease_s=LEASE_S),
            ):
                with pytest.raises(LeaseLost):
                    await call
            assert await queue.complete_many([Completion(id=item_id, token=late.token)]) == [item_id]
        assert (await item(queue, item_id)).state is WorkState.CLAIMED

    # The same token again: a repeated call over a bad connection must not change a result that others have
    # read.
    async def test_no_item_is_completed_twice(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue)
        claim = await must_claim(queue)
        await queue.complete(item_id, token=claim.token, result={"n": 1})
        with pytest.raises(LeaseLost):
            await queue.complete(item_id, token=claim.token, result={"n": 2})
        assert (await item(queue, item_id)).result == {"n": 1}

    async def test_a_renewed_lease_lasts(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue)
        claim = await must_claim(queue)
        for _ in range(3):
            await bench.pass_time(LEASE_S - 5)
            until_s = await queue.renew(item_id, token=claim.token, lease_s=LEASE_S)
            assert until_s == pytest.approx(bench.now_s() + LEASE_S, abs=2)
        assert await claim_one(queue) is None
        await queue.complete(item_id, token=claim.token)

    async def test_an_expired_lease_costs_the_attempt(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, attempts_max=2)
        for _ in range(2):
            await must_claim(queue)
            await bench.pass_time(LEASE_S + 1)
        dead = await item(queue, item_id)
        assert (dead.state, dead.attempts) == (WorkState.DEAD, 2)
        assert dead.error is not None
        assert "lease" in dead.error

    # Nobody may see an item as claimed whose lease is over, whoever looked first.
    async def test_expiry_is_counted_and_visible_to_all_at_once(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        ids = await queue.add([NewWork(kind="k") for _ in range(3)])
        await queue.claim(ANY, lease_s=LEASE_S, limit=2)
        await bench.pass_time(LEASE_S + 1)
        assert await queue.expire() == 2
        assert await queue.expire() == 0
        assert {(await item(queue, item_id)).state for item_id in ids} == {WorkState.READY}

    # A worker that stops on purpose says nothing about the item.
    async def test_a_release_costs_no_attempt(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, attempts_max=1)
        for _ in range(3):
            claim = await must_claim(queue)
            assert claim.attempt == 1
            await queue.release(item_id, token=claim.token)
        assert (await item(queue, item_id)).state is WorkState.READY

    async def test_failures_are_retried_after_their_delay_then_dead(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        item_id = await add(queue, attempts_max=2)
        claim = await must_claim(queue)
        state = await queue.fail(item_id, token=claim.token, error="no data", retry_after_s=10)
        assert state is WorkState.READY
        assert [(item.id, item.state) for item in await queue.delayed()] == [(item_id, WorkState.READY)]
        assert (await item(queue, item_id)).error == "no data"
        assert await claim_one(queue) is None
        await bench.pass_time(11)
        claim = await must_claim(queue)
        assert await queue.fail(item_id, token=claim.token, error="worse") is WorkState.DEAD
        assert await claim_one(queue) is None
        assert [(dead.id, dead.error) for dead in await queue.dead()] == [(item_id, "worse")]

    async def test_many_are_completed_with_the_stale_ones_named(self, bench: EngineBench) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id=name) for name in "abc"])
        claims = await queue.claim(ANY, lease_s=LEASE_S, limit=3)
        # One stale token must not take the good ones down with it.
        done = [Completion(id=c.id, token=c.token + (c.id == "b"), result={"by": c.id}) for c in claims]
        assert await queue.complete_many([*done, Completion(id="absent", token=1)]) == ["b", "absent"]
        assert [(await item(queue, name)).state for name in "abc"] == [
            WorkState.DONE,
            WorkState.CLAIMED,
            WorkState.DONE,
        ]

    # Not only by item: a store that compares tokens of different items must never meet an equal one.
    async def test_tokens_grow_over_all_items_and_handles(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).queue for _ in range(2)]
        await handles[0].add([NewWork(kind="k") for _ in range(6)])
        tokens = [(await must_claim(handles[n % 2])).token for n in range(6)]
        assert tokens == sorted(set(tokens))


# --- the whole queue ----------------------------------------------------------------------------------


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
        await add(queue, id="doomed", after=("dead",))  # it dies with what it needs, so it has ended as well
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

    # The loop learns of ends here alone: one way that is left out would leave a job open for ever.
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
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.ended(after=0, limit=10, wait_s=100))
            await bench.settle()
            assert not waiting.done(), "a claim is no end"
            await queue.complete("done", token=claim.token)
            (done,) = await waiting
            assert done.item.id == "done"
            waiting = group.create_task(reader.ended(after=done.number, limit=10, wait_s=100))
            await bench.settle()
            await bench.pass_time(LEASE_S + 1)
            await queue.expire()
            (expired,) = await waiting
        assert (expired.item.id, expired.item.state) == ("expired", WorkState.DEAD)

    # Release, failure and lost lease all bring an item back: none of them is an end.
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

    # With a new number, so that a reader who has seen the first end meets the second.
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

    # While ends are written: a number that becomes visible after a larger one would be skipped.
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
        with pytest.raises(LeaseLost):
            await queue.replace("a", NewWork(kind="k", id="b"), reason="late", guard=guard)
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
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(other.claim(ANY, lease_s=LEASE_S, wait_s=30))
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
        several = tuple(f"absent {number}" for number in range(9))
        with pytest.raises(ConfigError, match="needs absent 0,"):  # of several the first that is named
            await queue.add([NewWork(kind="k", after=several)])
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

    async def test_an_item_is_cancelled_and_another_added_in_its_place_together(
        self, bench: EngineBench
    ) -> None:
        queue = (await bench.open()).queue
        await queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="dependent", after=("a",))])
        claim = await must_claim(queue)
        with pytest.raises(AlreadyExists):
            await queue.replace("a", NewWork(kind="k", id="dependent"), reason="moved")
        assert (await item(queue, "a")).state is WorkState.CLAIMED
        assert await queue.replace("a", NewWork(kind="k", id="b"), reason="moved") == "b"
        with pytest.raises(LeaseLost, match="cancelled"):
            await queue.complete("a", token=claim.token)
        assert (await item(queue, "a")).error == "moved"
        assert (await item(queue, "dependent")).state is WorkState.DEAD
        assert (await must_claim(queue)).id == "b"
        assert await queue.replace("a", NewWork(kind="k", id="c"), reason="again") is None
        assert await queue.replace("absent", NewWork(kind="k", id="c"), reason="again") is None
        assert await queue.get("c") is None

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
