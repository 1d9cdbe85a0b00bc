"""An engine, a run whose facts a test writes, the coordinator of searches, and a worker's hands."""

from feedback_kit import Ear, Run, checked_shard

from ringrift.coordination.optimization_coordinator import OptimizationCoordinator
from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Claimant
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import outlook
from ringrift.learning.plan.plan import plan
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.job.protocol import JobReport


class World:
    """An engine, a run, a coordinator, and a worker's hands."""

    def __init__(self, *configs):
        self.runtime, self.ear, self.run = SimulatedRuntime(), Ear(), Run(*configs)
        self.engine = memory_engine(self.runtime)
        self.coordinator = OptimizationCoordinator(
            engine=self._get_engine,
            router=self.ear.router,
            runtime=self.runtime,
            situations=self.run.situations,
        )
        self.coordinator.wire()

    async def _get_engine(self):
        return self.engine

    async def claim(self):
        claims = await self.engine.queue.claim(Claimant(worker="w"), lease_s=600.0)
        return claims[0] if claims else None

    async def complete(self, claim, **fields):
        now_s = self.runtime.now_s()
        report = JobReport(
            status="done", worker="w", node="n", started_s=now_s, wall_s=1.0, cpu_s=1.0, fields=fields
        )
        await self.engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
        done = {"work_id": claim.id, "work_type": "tune", "node_id": "n"}
        await self.ear.router.publish("WORK_COMPLETED", done, "worker")

    async def whole(self, **fields):
        claim = await self.claim()
        await self.complete(claim, **fields)

    def samples(self):
        story = self.run.story
        checked_shard(story)
        story.export()


def in_world(scenario, *configs):
    async def whole():
        world = World(*configs)
        await scenario(world)

    simulate(whole())


def next_order(story, stage, rules):
    """What the plan orders of *stage* after what *story* tells."""
    return next(each.order for each in planned(story, rules).wanted if each.stage == stage)


def planned(story, rules):
    return plan(outlook(story.state, rules, RatingCurves(), now_s=story.now_s))
