"""A training slot and the loop's own trainings: never both at once, and whoever waits is told for whom."""

import asyncio

from learning_world import World

from ringrift.engine.ports import WorkState
from ringrift.errors import Unavailable
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import JobIssued, Noted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.state import stage_of
from ringrift.learning.plan.rules import StudentRules
from ringrift.learning.replay import replay
from ringrift.learning.requests import TrainingJob, TrainingSlots, trainings_of_workers
from ringrift.testing.simulation import simulate

CONFIG = "square8_2p"
TRAININGS = {"train", "distillation", "small_net"}
STUDENTS = {"students": StudentRules(distillation="small", small_net_games=4_000)}


class RunWithSlots(World):
    """A loop beside somebody who trains with a program of his own."""

    def __init__(self):
        super().__init__(7, configs=(CONFIG,), faults=False, rules=STUDENTS)
        self.slots_of_mine = TrainingSlots(self.opened, runtime=self.runtime)
        self.both_at_once = 0
        self.telling, self.breaks_off = [], True
        self.failed = []  # trainings of which it was told

    def tell(self, event, payload):
        if event == "TRAINING_FAILED":
            self.telling.append(payload)

    async def publish(self):
        telling, self.telling = self.telling, []
        if telling and self.breaks_off:
            self.breaks_off = False
            raise Unavailable("the event log is away")
        self.failed += telling

    def _new_controller(self):
        announcer = Silent()
        announcer.tell, announcer.publish = self.tell, self.publish
        return Controller(self.engine(), self.runtime, self.rules, announcer=announcer)

    async def _control_life(self):
        while True:
            try:
                await super()._control_life()
            except Unavailable:
                continue  # whoever watches the loop starts it again

    async def opened(self):
        return self.engine()

    async def live(self, body):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._worker(f"w{n}")) for n in range(4)]
            tasks += [group.create_task(self._control()), group.create_task(self._look())]
            await body(self)
            for task in tasks:
                task.cancel()

    async def _look(self):
        """Count the moments at which a worker trains although somebody holds the slot."""
        while True:
            by_workers = await trainings_of_workers(self.engine().queue)
            self.both_at_once += bool(await self.slots_of_mine.running()) and CONFIG in by_workers
            await self.runtime.sleep(1.0)

    async def trainings(self, *, since_s=0.0):
        return [
            each
            for each in await read_facts(self.engine().kv, CONFIG)
            if isinstance(each, JobIssued)
            and stage_of(each.kind, each.order.purpose) in TRAININGS
            and each.at_s > since_s
        ]

    def said(self, stage):
        return [each.reason for each in self.controller.plans[CONFIG].explanations if each.stage == stage][-1]


def lived(body):
    world = RunWithSlots()
    simulate(world.live(body))
    return world


async def replayed(world):
    return replay(CONFIG, await read_facts(world.engine().kv, CONFIG), world.rules)


def test_while_somebody_holds_the_slot_the_loop_orders_no_training_and_says_who_holds_it():
    async def body(world):
        await world.runtime.sleep(900.0)
        assert await world.trainings()
        job = await world.slots_of_mine.request(CONFIG, wait_s=120.0)
        assert isinstance(job, TrainingJob)
        await world.runtime.sleep(20.0)  # the loop's next look
        taken_s = world.runtime.now_s()
        await world.runtime.sleep(900.0)
        assert await world.trainings(since_s=taken_s) == []
        for stage in TRAININGS:
            assert f"process {job.pid} on {job.node} holds the training slot" in world.said(stage)
            assert job.job_id in world.said(stage)
            assert "since " in world.said(stage)
        await world.slots_of_mine.release(job.job_id)
        released_s = world.runtime.now_s()
        await world.runtime.sleep(300.0)
        assert await world.trainings(since_s=released_s)
        assert world.both_at_once == 0
        notes = [each for each in await read_facts(world.engine().kv, CONFIG) if isinstance(each, Noted)]
        assert [each.text for each in notes if each.topic == "training_slot"][-1] == (
            "the training slot is free again"
        )
        assert await replayed(world) == []

    lived(body)


def test_a_training_that_was_ordered_before_waits_until_the_slot_is_free_and_is_trained_then():
    async def body(world):
        while not (ready := await ordered_and_not_begun(world)):
            await world.runtime.sleep(0.5)
        taken = await world.slots_of_mine.request(CONFIG)
        assert isinstance(taken, TrainingJob)
        await world.runtime.sleep(300.0)
        assert (await world.engine().queue.get(ready[0].id)).state is WorkState.READY
        assert "holds the training slot" in world.said("train")
        await world.slots_of_mine.release(taken.job_id)
        await world.runtime.sleep(120.0)
        assert (await world.engine().queue.get(ready[0].id)).state is WorkState.DONE
        assert world.both_at_once == 0
        assert await replayed(world) == []

    async def ordered_and_not_begun(world):
        queue = world.engine().queue
        if CONFIG in await trainings_of_workers(queue):
            return []  # a student is being trained, beside whom there is no slot either
        return [each for each in await queue.ready() if each.kind == "train"]

    lived(body)


def test_the_slot_of_one_who_died_runs_out_and_the_loop_goes_on():
    async def body(world):
        await world.runtime.sleep(900.0)
        job = await world.slots_of_mine.request(CONFIG, wait_s=120.0)
        await world.runtime.sleep(20.0)
        await world.slots_of_mine._held[job.job_id].renewals.stop(1.0)
        died_s = world.runtime.now_s()
        await world.runtime.sleep(400.0)
        # The first time it could not be sent.
        assert ([told["job_id"] for told in world.failed], world.breaks_off) == ([job.job_id], False)
        assert [each.job_id for each in await world.slots_of_mine.ended()] == [job.job_id]
        assert await world.trainings(since_s=died_s)
        assert world.both_at_once == 0
        assert await replayed(world) == []

    lived(body)
