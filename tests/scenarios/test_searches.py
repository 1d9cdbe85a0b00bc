"""Searches for better parameters: of the heuristic player, of the network's size, of how it is trained."""

import asyncio
from dataclasses import replace
from functools import partial

import learning_world
from learning_run import CONFIG, LearningRun
from recording import scenario
from worker_world import end_well, say

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.coordination.optimization_coordinator import get_optimization_coordinator
from ringrift.engine.ports import Claimant
from ringrift.testing.simulation import simulate
from ringrift.work.job.folder import JobFolders
from ringrift.work.tasks import DurationStore
from ringrift.work.worker.claim import WorkerContext, WorkerEvents
from ringrift.work.worker.main import Worker
from ringrift.work.worker.records import WorkerConfig


class RunWithSearches(LearningRun):
    """One real worker does the searches; what their programs find is told by the test."""

    def worker(self, folder):
        engine = self.engine()

        async def kv():
            return engine.kv

        context = WorkerContext(
            config=WorkerConfig(name="searcher", node="sim", kinds=frozenset({"tune"})),
            engine=engine,
            runtime=self.runtime,
            settings=replace(get_settings(), data_dir=folder),
            folders=JobFolders(folder / "jobs"),
            events=WorkerEvents(get_router().publish, node="sim"),
            durations=DurationStore(kv, runtime=self.runtime),
        )
        return Worker(context)

    async def search(self, kind, finding, **params):
        """Order a search and let its program find something in two generations."""
        number = len(self.runtime.children)
        await get_optimization_coordinator().begin(kind, CONFIG, "somebody wants to know", **params)
        await self.until(lambda: len(self.runtime.children) > number, what=f"the program of {kind}")
        child = self.runtime.children[number][1]
        generations = [{"generation": n, "best_score": 0.5 + n / 10} for n in (1, 2)]
        for each in generations:
            say(child, event="progress", stage="searching", done=each["generation"], total=2, **each)
            await self.runtime.sleep(15.0)
        end_well(child, generations=generations, best_score=0.7, improved=True, **finding)
        await self.runtime.sleep(400.0)  # some minutes lie between two searches


@scenario(
    "CMAES_COMPLETED",
    "CMAES_TRIGGERED",
    "NAS_BEST_ARCHITECTURE",
    "NAS_COMPLETED",
    "NAS_GENERATION_COMPLETE",
    "NAS_STARTED",
    "NAS_TRIGGERED",
    "PBT_COMPLETED",
    "PBT_GENERATION_COMPLETE",
    "PBT_STARTED",
)
def test_searches_of_each_kind_find_something(tmp_path, monkeypatch):
    kinds = frozenset(learning_world.JOB_S)
    monkeypatch.setattr(learning_world, "Claimant", partial(Claimant, kinds=kinds))

    async def body(world):
        stop = asyncio.Event()
        working = asyncio.create_task(world.worker(tmp_path).run(stop))
        try:
            await world.until(lambda: world.controller.state(CONFIG).newest_samples, what="samples")
            await world.search("cmaes", {"best_params": {"center": 1.5}})
            await world.search("pbt", {"best_params": {"lr": 0.001}}, population=4)
            scores = {"small": 0.5, "medium": 0.7}
            await world.search("nas", {"best_params": {"preset": "medium"}, "scores": scores})
        finally:
            stop.set()
            await working

    simulate(RunWithSearches().live(body))
