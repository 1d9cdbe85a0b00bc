"""Self-play gives its slot to other work: it is asked to yield, ends well, and the other work is done."""

import asyncio
import random
import signal

import msgspec
import pytest
from worker_world import end_well

from ringrift.engine.ports import NewWork, WorkState
from ringrift.work.job.protocol import JobOrder
from ringrift.work.worker.records import SetAsideRecord, live_workers, set_aside_key

DONE, READY, CLAIMED, CANCELLED = WorkState.DONE, WorkState.READY, WorkState.CLAIMED, WorkState.CANCELLED


async def selfplay(here, *, hand_over=True):
    order = JobOrder(config="c", params={"out": "{out}", "hand_over": hand_over})
    (item_id,) = await here.engine.queue.add(
        [NewWork(kind="selfplay", payload=order.as_payload(), priority=-1)]
    )
    return item_id


async def asked(child):
    """Wait until a program is asked to end."""
    while signal.SIGTERM not in child.signals:
        await asyncio.sleep(0.01)


def test_games_make_way_for_other_work_and_both_end_well(world):
    async def scenario(here):
        first = await selfplay(here)
        one = await here.child(0)
        await here.runtime.sleep(5)
        second = await selfplay(here)
        two = await here.child(1)
        await here.runtime.sleep(5)
        short = await here.add("evaluate")
        await asked(one)  # it has played for longer
        assert signal.SIGTERM not in two.signals
        assert len(here.runtime.children) == 2  # not before there is room for it
        assert (await here.item(short)).state is CLAIMED
        end_well(one)
        three = await here.child(2)
        done = await here.until(first, DONE)
        assert (done.attempts, done.result["status"]) == (1, "done")
        end_well(three)
        assert (await here.until(short, DONE)).attempts == 1
        assert (await here.item(second)).state is CLAIMED
        assert signal.SIGTERM not in two.signals
        end_well(two)
        await here.until(second, DONE)
        (told,) = [payload for event, payload in here.published if event == "JOB_PREEMPTED"]
        assert (told["preempted_job_id"], told["preempting_job_id"]) == (first, short)
        assert (told["preempting_job_type"], told["runtime_seconds"] >= 10.0) == ("evaluate", True)

    world(scenario, slots=2)


@pytest.mark.parametrize(
    ("hand_over", "kinds"), [(False, None), (True, frozenset({"selfplay"}))], ids=["no hand-over", "player"]
)
def test_games_go_on_that_cannot_be_handed_over_or_if_this_worker_only_plays(world, hand_over, kinds):
    async def scenario(here):
        games = await selfplay(here, hand_over=hand_over)
        one = await here.child(0)
        short = await here.add("evaluate")
        await here.runtime.sleep(100)
        assert (one.signals, (await here.item(short)).state) == ([], READY)
        end_well(one)
        await here.until(games, DONE)

    world(scenario, slots=1, kinds=kinds)


def test_games_go_on_where_another_worker_of_the_machine_does_the_short_work(world):
    async def scenario(here):
        games = await selfplay(here)
        one = await here.child(0)
        short = await here.add("validate")
        await here.runtime.sleep(100)
        assert (one.signals, (await here.item(short)).state) == ([], READY)
        await here.add("evaluate")
        await asked(one)
        end_well(one)
        await here.until(games, DONE)

    world(scenario, slots=1, left_to_others=frozenset({"validate"}))


def test_games_do_not_make_way_for_games(world):
    async def scenario(here):
        await selfplay(here)
        one = await here.child(0)
        more = await selfplay(here)
        await here.runtime.sleep(100)
        assert (one.signals, (await here.item(more)).state) == ([], READY)
        end_well(one)
        end_well(await here.child(1))
        await here.until(more, DONE)

    world(scenario, slots=1)


def test_a_slot_that_becomes_free_by_itself_does_the_waiting_work(world):
    async def scenario(here):
        await selfplay(here)
        await selfplay(here)
        one, two = await here.child(0), await here.child(1)
        short = await here.add("evaluate")
        await asked(one)
        end_well(two)
        three = await here.child(2)  # while the first still seals its games
        end_well(three)
        await here.until(short, DONE)
        end_well(one)

    world(scenario, slots=2)


def test_games_that_cannot_end_in_time_go_back_and_the_other_work_is_done(world):
    async def scenario(here):
        games = await selfplay(here)
        one = await here.child(0)
        short = await here.add("evaluate")
        await one.wait()  # killed after the grace period
        two = await here.child(1)
        assert (await here.item(games)).attempts == 0  # it costs no attempt
        end_well(two)
        assert (await here.until(short, DONE)).attempts == 1
        end_well(await here.child(2))
        await here.until(games, DONE)

    world(scenario, slots=1, grace_s=50.0, lease_s=30.0)


def test_a_worker_that_stops_gives_back_what_waits_and_completes_its_games(world):
    async def scenario(here):
        games = await selfplay(here)
        one = await here.child(0)
        short = await here.add("evaluate")
        await asked(one)
        here.stop.set()
        await here.runtime.sleep(1)
        end_well(one)
        await here.until(games, DONE)
        while (item := await here.item(short)).state is CLAIMED:
            await here.wait_a_little()
        assert (item.state, item.attempts, len(here.runtime.children)) == (READY, 0, 1)

    world(scenario, slots=1)


def test_games_that_can_be_handed_over_are_completed_when_the_worker_stops(world):
    async def scenario(here):
        games = await selfplay(here)
        one = await here.child(0)
        here.stop.set()
        await asked(one)
        end_well(one)
        await here.until(games, DONE)

    world(scenario, slots=1)


def test_waiting_work_that_is_cancelled_is_not_done(world):
    async def scenario(here):
        await selfplay(here)
        one = await here.child(0)
        short = await here.add("evaluate")
        await asked(one)
        await here.engine.queue.cancel(short, reason="asked for")
        await here.runtime.sleep(30)  # it is found out when the lease is renewed
        end_well(one)
        more = await selfplay(here)
        two = await here.child(1)
        end_well(two)
        await here.until(more, DONE)
        assert (await here.item(short)).state is CANCELLED

    world(scenario, slots=1, grace_s=100.0)


def test_a_worker_that_is_set_aside_asks_nobody_to_yield(world):
    async def scenario(here):
        await selfplay(here)
        one = await here.child(0)
        record = SetAsideRecord(worker="w1", reason="a test", since_s=here.runtime.now_s(), until_s=1e12)
        await here.engine.kv.put(set_aside_key("w1"), msgspec.json.encode(record))
        short = await here.add("evaluate")
        await here.runtime.sleep(100)
        assert signal.SIGTERM not in one.signals
        assert (await here.item(short)).state is READY
        end_well(one)
        await here.runtime.sleep(10)

    world(scenario, slots=1)


@pytest.mark.parametrize("seed", range(3))
def test_there_are_never_more_jobs_than_slots_and_all_work_is_done(world, seed):
    """Jobs of all kinds come and end at random moments; a few are slow to yield, some are cancelled."""
    lots = random.Random(seed)

    async def program(here, number):
        child = await here.child(number)
        left_s = lots.choice([1.0, 5.0, 60.0])
        while left_s > 0 and not child.exit_code.done() and signal.SIGTERM not in child.signals:
            await here.runtime.sleep(0.25)
            left_s -= 0.25
        await here.runtime.sleep(lots.choice([0.0, 0.3, 2.0]))
        end_well(child)

    async def scenario(here):
        items, programs, most = [], [], 0
        for step in range(200):
            while len(programs) < len(here.runtime.children):
                programs.append(asyncio.create_task(program(here, len(programs))))
            running = sum(not child.exit_code.done() for _, child in here.runtime.children)
            most = max(most, running)
            if lots.random() < 0.2 and step < 150:
                items.append(await selfplay(here) if lots.random() < 0.6 else await here.add("evaluate"))
            if lots.random() < 0.02 and items:
                await here.engine.queue.cancel(lots.choice(items), reason="a test")
            await here.runtime.sleep(lots.choice([0.1, 0.5, 1.0]))
        while not {(await here.item(each)).state for each in items} <= {DONE, CANCELLED}:
            while len(programs) < len(here.runtime.children):
                programs.append(asyncio.create_task(program(here, len(programs))))
            await here.runtime.sleep(2.0)
        assert most == 3
        states = [await here.item(each) for each in items]
        assert all(each.attempts == 1 for each in states if each.state is DONE)
        assert any(signal.SIGTERM in child.signals for _, child in here.runtime.children)
        (record,) = await live_workers(here.engine.kv)
        assert record.failed == 0
        await asyncio.gather(*programs)

    world(scenario, slots=3)
