"""A game to a champion: the controller orders it, a worker runs every job as a process, a model is published.

Controller and worker are the real ones on a real store, with real jobs; both are in this process, so that one
trace sees both. The daemons plan without which nothing would be learned, and no others. The settings are for
a small network and few games, so that it takes less than a minute.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trace_journeys import Trace

from ringrift.coordination.event_router import get_router
from ringrift.coordination.run_coordinator import get_stage_members
from ringrift.coordination.safeguards import get_safeguards
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import Engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcements import RouterAnnouncer
from ringrift.learning.controller import Controller
from ringrift.learning.models import read_champion
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.plan.stages import NEEDED, StageMembers
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, load_settings
from ringrift.work.job.folder import JobFolders
from ringrift.work.tasks import DurationStore
from ringrift.work.worker.claim import WorkerContext, WorkerEvents
from ringrift.work.worker.main import Worker
from ringrift.work.worker.records import WorkerConfig

CONFIG = "connect_four_2p"
LOOK_S = 2.0  # as often as the loop plans without a reason
PUBLISHED_S_MAX = 300.0
SMALL = {
    "simulations": 2,
    "evaluation_simulations": 2,
    "selfplay_job_s": 2.0,
    "selfplay_games_first": 16,
    "selfplay_slots": 16,
    "batch": 16,
    "window_base": 2000,
    "bucket": {"chunk_steps": 480, "cap_steps": 10_000_000, "rows_first_min": 150},
    "rating_games": 4,
    "rating_opponents": ["random"],
    "evaluation_games": 8,
    # A model of some seconds is hardly stronger than random moves: one that is not much weaker has to do.
    "promotion": {
        "elo0": -300.0,
        "elo1": 0.0,
        "games_max": 24,
        "chunk_games": 12,
        "floor_2p": 0.05,
        "floor_games_min": 4,
        "floor_games_max": 8,
    },
}


def journey(folder: Path, trace: Trace) -> None:
    environment = {"RINGRIFT_DATA_DIR": str(folder), "RINGRIFT_LEARNING": json.dumps(SMALL)}
    settings = load_settings(environment).settings
    process_scope().put(Settings, settings)
    asyncio.run(_learn(settings, trace))


async def _learn(settings: Settings, trace: Trace) -> None:
    engine, router, runtime = await get_engine(), get_router(), system_runtime()
    controller = Controller(
        engine,
        runtime,
        configured_rules(settings),
        announcer=RouterAnnouncer(router),
        safeguards=get_safeguards(),
        stages=_planning_stages(),
    )
    worker, stop = _worker(engine, router, runtime, settings), asyncio.Event()
    await router.start()
    # Threads of the executor are seen only if they start within the trace.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    try:
        with trace:
            async with asyncio.timeout(PUBLISHED_S_MAX), asyncio.TaskGroup() as group:
                group.create_task(worker.run(stop))
                await controller.open([CONFIG])
                while await read_champion(engine.kv, CONFIG) is None:
                    await controller.reconcile()
                    await controller.wait_for_end(LOOK_S)
                stop.set()
    finally:
        await router.stop()
        await close_engine()


def _planning_stages() -> StageMembers:
    members = get_stage_members()
    for daemon in NEEDED:
        members.join(daemon)
    members.complete()
    return members


def _worker(engine: Engine, router: UnifiedEventRouter, runtime: Runtime, settings: Settings) -> Worker:
    config = WorkerConfig(name="journey", node=runtime.hostname, slots=2)
    return Worker(
        WorkerContext(
            config=config,
            engine=engine,
            runtime=runtime,
            settings=settings,
            folders=JobFolders(settings.job_dir),
            events=WorkerEvents(router.publish, node=config.node),
            durations=DurationStore(),
        )
    )
