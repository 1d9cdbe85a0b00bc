"""A loop in simulated time beside the product's own daemons and coordinators, all on one router.

Workers and their jobs are simulated: networks are hidden strengths. Everything that decides, tells and
listens is the product's own, so a test only says what happens to games, trainings and matches.
"""

import asyncio
import hashlib

from learning_world import JOB_S
from tasks_world import ROOMY
from test_stage_daemons import CONFIG, FOLLOWER, RunWithDaemons, needed

from ringrift.coordination.backpressure import WorkQueueMonitorDaemon
from ringrift.coordination.coordination_bootstrap import shutdown_all_coordinators, start_coordination
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.daemons.types import DaemonType
from ringrift.learning.announcements import RouterAnnouncer
from ringrift.learning.facts.results import participant
from ringrift.learning.loop import StatusWriter
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import simulate
from ringrift.work.job.protocol import JobArtifact

__all__ = ["CONFIG", "FOLLOWER", "LearningRun", "lived"]

# Daemons that tell what they see of the run, beside those that plan it.
TELLING = (
    "data_cleanup",
    "metrics_analysis",
    "model_distribution",
    "progress_watchdog",
    "system_health_monitor",
    "work_queue_monitor",
)
STATUS_S = 15.0


class LearningRun(RunWithDaemons):
    """The loop tells its facts and its status, and everybody who listens by default does."""

    def __init__(self, *, also=TELLING, quality=None, **about):
        super().__init__(**about)
        self.also = also
        self.quality = quality  # of all games; None: every fourth file is poor
        self.keeps_files = True  # of jobs
        self.failing = set()  # kinds of jobs that fail for good
        self.loss = None  # of the next trainings
        self.rated = (
            None  # what games against random show, by the number of champions so far; None: the truth
        )
        self.after_training = lambda: None
        self.gain = None  # of the next trainings, in rating points; None: as they come

    def _new_controller(self):
        made = super()._new_controller()
        made._announcer = RouterAnnouncer(get_router())
        return made

    async def live(self, body):
        process_scope().put(SystemRuntime, self.runtime)

        async def listened_to(world):
            await start_coordination()
            self.manager.register_factory(DaemonType.WORK_QUEUE_MONITOR, self._work_queue_monitor)
            await self.manager.start_all([*needed(self.also)])
            try:
                await body(world)
            finally:
                await shutdown_all_coordinators()

        await super().live(listened_to)

    async def _work_queue_monitor(self):
        await WorkQueueMonitorDaemon(resources=roomy, runtime=self.runtime).run()

    async def _control_life(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self._show_status())
            await super()._control_life()

    async def _show_status(self):
        await self.runtime.sleep(STATUS_S)
        status = StatusWriter(
            self.engine(), self.runtime, get_settings(), self.controller, router=get_router()
        )
        while True:
            await status.write("running")
            await self.runtime.sleep(STATUS_S)

    async def until_proven(self, recording, *events, hours=12.0):
        """Live until each of *events* was sent and received."""
        await self.until(
            lambda: not recording.lacking(events), what=lambda: recording.lacking(events), hours=hours
        )

    async def until(self, true, *, what, hours=6.0):
        """Live until something is so."""
        for _ in range(round(hours * 240)):
            found = true()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await self.runtime.sleep(15.0)
        raise AssertionError(f"not within {hours} hours: {what() if callable(what) else what}")

    # --- jobs -----------------------------------------------------------------------------------------

    async def _carry_out(self, engine, name, claim):
        if claim.kind in JOB_S.keys() - self.failing:
            await super()._carry_out(engine, name, claim)
            return
        await self.runtime.sleep(1.0)
        await engine.queue.fail(claim.id, token=claim.token, error=f"no {claim.kind} today", final=True)

    def _artifact(self, kind, **counts):
        """A file that is really there."""
        content = self.rng.randbytes(32)
        digest = hashlib.sha256(content).hexdigest()
        if self.keeps_files:
            self.store.blobs.content[digest] = content
        return JobArtifact(name=kind, kind=kind, digest=digest, size_bytes=len(content), counts=counts)

    def _validate(self, order):
        reports, told = super()._validate(order)
        for report in reports:
            if self.quality is not None:
                report.counts["quality"] = self.quality
        return reports, told

    def _train(self, order):
        artifacts, told = super()._train(order)
        if self.gain is not None:
            before = self.truth.strength.get(order.inputs.get("parent.safetensors"), -200.0)
            self.truth.strength[artifacts[0].digest] = before + self.gain
        self.after_training()
        return artifacts, told if self.loss is None else {**told, **self.loss}

    def _played(self, order, *texts, games):
        if self.rated is None or texts[1] != "random":
            return super()._played(order, *texts, games=games)
        champions = len(self.controller.state(order.config).promotions)
        shown = self.rated(champions)
        who, _ = participant(texts[0], order.inputs)
        truth, self.truth.strength[who] = self.truth.strength.get(who), shown
        try:
            return super()._played(order, *texts, games=games)
        finally:
            self.truth.strength[who] = truth


async def roomy():
    """How busy the real machine is would change who gets work."""
    return ROOMY


def lived(body, **about):
    world = LearningRun(**about)
    simulate(world.live(body))
    return world
