"""`python -m ringrift.work.worker_main --slots N --name NAME`: a worker as a process of its own.

SIGTERM and SIGINT let the jobs seal what they have, give the items back and end it; a second signal ends it
at once. So does the end of the process named by --parent: nobody would ask the worker to stop any more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import structlog

from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import ConfigError, Conflict, RingRiftError
from ringrift.events.router import get_router
from ringrift.file_identity import HeldPath
from ringrift.held_folder import hold_folder
from ringrift.private_files import private_umask
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings
from ringrift.work.durations_book import get_duration_book
from ringrift.work.job_folders import JobFolders
from ringrift.work.job_host import JobHost
from ringrift.work.worker import Worker
from ringrift.work.worker_config import WorkerConfig, own_capabilities, visible_gpus
from ringrift.work.worker_events import WorkerEvents
from ringrift.work.worker_shop import Workshop

log = structlog.get_logger()

WRONG_INPUT, ENDED_AT_ONCE, UNAVAILABLE = 2, 3, 5
LOOK_FOR_PARENT_S = 1.0
HOSTS = ".hosts"  # in the folder of the jobs


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    runtime = system_runtime()
    gpus = visible_gpus()
    try:
        settings = get_settings()
        if options.folder is not None:
            _hold(settings.data_dir, options.folder)
        os.umask(private_umask(settings.data_dir))
        config = WorkerConfig(
            name=options.name or f"{runtime.hostname}-1",
            node=options.node or runtime.hostname,
            slots=options.slots,
            kinds=frozenset(options.kinds) if options.kinds else None,
            left_to_others=frozenset(options.left_to_others),
            capabilities=own_capabilities(gpus) | frozenset(options.capabilities),
            gpus=gpus,
            lease_s=options.lease_s or settings.job_lease,
        )
        process_scope().put(Settings, replace(settings, process_name=f"worker-{config.name}"[:100]))
        asyncio.run(_work(config, options.parent))
    except asyncio.CancelledError:
        return ENDED_AT_ONCE
    except (ConfigError, Conflict) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_INPUT
    except RingRiftError as error:
        log.error("worker.ended", error=f"{type(error).__name__}: {error}")
        return UNAVAILABLE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ringrift.work.worker_main", description=__doc__)
    parser.add_argument("--slots", type=int, default=1, help="jobs at a time")
    parser.add_argument("--name", help="name of this worker, one per living process")
    parser.add_argument("--node", help="name of this machine; its host name if none")
    parser.add_argument("--kinds", nargs="+", default=[], help="kinds of jobs to take; any if none")
    parser.add_argument("--left-to-others", nargs="+", default=[], help="kinds for which no game yields")
    parser.add_argument("--capabilities", nargs="+", default=[], help="beside cpu and gpu")
    parser.add_argument("--lease-s", type=float, help="lease of a claim, in seconds; as in the settings")
    parser.add_argument("--folder", help="end at once if the data folder is another one than this")
    parser.add_argument("--parent", type=int, help="end at once when this process is not the parent any more")
    return parser


def _hold(folder: Path, identity: str) -> None:
    """Work in the folder of the process that started this one, and in no other; `Conflict` if it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Conflict(f"{folder} cannot be opened: {error.strerror}") from None
    try:
        if HeldPath(folder, os.fstat(descriptor)).identity != identity:
            raise Conflict(f"{folder} was exchanged for another one before this worker began")
        hold_folder(folder, descriptor)
    finally:
        os.close(descriptor)


async def _work(config: WorkerConfig, parent: int | None) -> None:
    stop = asyncio.Event()
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop, this)
    settings, runtime, engine = get_settings(), system_runtime(), await get_engine()
    router = get_router()
    watching = asyncio.ensure_future(_end_with(parent, this, runtime))
    host = JobHost(
        runtime,
        folder=settings.job_dir / HOSTS,
        name=config.name,
        kinds=config.kinds,
        jobs_max=settings.job_host_jobs,
    )
    try:
        await router.start()
        shop = Workshop(
            config=config,
            engine=engine,
            runtime=runtime,
            settings=settings,
            folders=JobFolders(settings.job_dir),
            events=WorkerEvents(router.publish, node=config.node),
            durations=get_duration_book(),
            host=host,
        )
        await Worker(shop).run(stop)
    finally:
        watching.cancel()
        await host.close()
        await router.stop()
        await close_engine()


async def _end_with(parent: int | None, task: asyncio.Task[None] | None, runtime: Runtime) -> None:
    """The guard of the parent does this sooner, unless both were killed."""
    if parent is None or task is None:
        return
    while os.getppid() == parent:
        await runtime.sleep(LOOK_FOR_PARENT_S)
    log.warning("worker.parent_gone", parent=parent)
    task.cancel()


def _ask_to_stop(stop: asyncio.Event, task: asyncio.Task[None] | None) -> None:
    if stop.is_set() and task is not None:
        task.cancel()
    stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
