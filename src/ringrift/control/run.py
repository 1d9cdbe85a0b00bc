"""A run from Python: started for named configs, waited for, read, and ended with the block that started it.

    async with start_run("connect_four_2p", workers=2) as run:
        path = await run.wait_for_champion("connect_four_2p", timeout_s=600)
        for model in run.models("connect_four_2p"):
            print(model.version, model.state, round(model.elo), "±", round(model.elo_uncertainty))

It is the control process of the data folder, as `ringrift run` is, inside the program that starts it. The
champion is an ordinary file with its card beside it (`ringrift.network.storage.load_model` reads both), and
stays when the run has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ringrift.control.process import Started, run_control_process
from ringrift.control.run_options import (
    RunOptions,
    check_learning_libraries,
    parse_configs,
    parse_workers,
)
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.model_lifecycle_coordinator import ModelRecord, get_model_coordinator
from ringrift.engine.opening import close_data_folder, get_engine
from ringrift.errors import Unavailable
from ringrift.learning.models import installed_champion, read_champion
from ringrift.runtime import system_runtime

LOOK_S = 0.25


class StartedRun:
    """The run that `start_run` started in this process."""

    def __init__(self, started: Started) -> None:
        self.started = started  # which daemons came up, and which did not with the reason

    def models(self, config: str) -> list[ModelRecord]:
        """Every model of *config* with its state and rating, oldest first."""
        return get_model_coordinator().get_models(config)

    async def wait_for_champion(self, config: str, *, timeout_s: float, other_than: str = "") -> Path:
        """Wait for a champion of *config* whose hash is not *other_than*; return the file of its weights.

        Raises `Unavailable` if there is none by then.
        """
        runtime, kv, folder = system_runtime(), (await get_engine()).kv, get_settings().data_dir
        end_s = runtime.monotonic_s() + timeout_s
        while runtime.monotonic_s() < end_s:
            champion = await read_champion(kv, config)
            if champion is not None and champion.model not in (None, other_than):
                path = await asyncio.to_thread(installed_champion, folder, config, champion.model)
                if path is not None:
                    return path
            # A promotion is a fact before its files are installed: there is no one moment to wait for.
            await runtime.sleep(LOOK_S)
        raise Unavailable(f"{config} has no new champion after {timeout_s:.0f} s", retry_after_s=LOOK_S)


@asynccontextmanager
async def start_run(
    *configs: str, workers: int | None = None, profile: str = "standard"
) -> AsyncIterator[StartedRun]:
    """Learn *configs* (without any, those of before) in this process until the block ends.

    *workers* is how many jobs run at a time: None is one a core, and 0 leaves all work to workers elsewhere
    and to programs that tell of their files. The data folder is that of the settings (`RINGRIFT_DATA_DIR`).
    Raises `ConfigError` for what can be no run, and `Conflict` if another process controls the folder.
    """
    options = RunOptions(
        configs=parse_configs(",".join(configs)) if configs else None,
        workers=None if workers is None else parse_workers(workers),
    )
    settings = get_settings()
    check_learning_libraries(settings, workers=workers)
    close_data_folder(settings)
    stop, up = asyncio.Event(), asyncio.get_running_loop().create_future()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                run_control_process(profile=profile, stop=stop, on_started=up.set_result, options=options)
            )
            run = StartedRun(await up)  # a start that fails ends this wait, too
            try:
                yield run
            finally:
                stop.set()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the reader wants the cause, not the group around it
