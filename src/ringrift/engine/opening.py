"""Opening an engine, and the one that this process shares."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import structlog

from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.private_files import close_to_others, make_private_folder
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings

__all__ = [
    "close_data_folder",
    "close_engine",
    "existing_engine",
    "get_engine",
    "get_engine_blocking",
    "memory_engine",
    "open_engine",
]


log = structlog.get_logger()


async def open_engine(settings: Settings, runtime: Runtime) -> Engine:
    """Open the engine that *settings* name."""
    await asyncio.to_thread(close_data_folder, settings)
    return await asyncio.to_thread(open_sqlite, SqliteConfig.from_settings(settings), runtime)


class BeginningAllowed:
    """In the scope of a process that may make a database where the files of a run lie."""


def allow_new_database() -> None:
    """For whoever brings the run's state itself: a restore, a rebuild, a run that begins anew."""
    process_scope().put(BeginningAllowed, BeginningAllowed())


def close_data_folder(settings: Settings) -> None:
    """Make the data folder, and take everybody else's rights from one that is there.

    Inside a folder that nobody can enter, no file can be opened or locked by others; what coordinates is
    closed on its own as well, because it may lie elsewhere. Raises `ConfigError` for another user's folder.
    """
    folder, coordination = settings.data_dir, settings.coordination_dir
    with told_in_our_words(folder):
        make_private_folder(folder)
        inside = coordination.absolute().is_relative_to(folder.absolute())
        coordinating = [coordination, *coordination.glob("*"), *coordination.glob("*/*")] if inside else []
        logs = folder / "logs"
        opened = close_to_others(
            (folder, *coordinating, logs, *logs.glob("*"), *folder.glob("*_token"), *folder.glob("*_secret"))
        )
    if opened:
        log.warning(
            "data_folder.closed_to_others",
            folder=str(folder),
            paths=len(opened),
            why="other users of this machine could read or lock them",
            to_share_with_a_group="chmod g+s",
        )


class SharedEngine:
    """This process's engine: opened on first use, by whoever comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._inherited: list[Engine] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """A child opens its own. It must not close the parent's, so it keeps it out of the way."""
        self._lock = threading.Lock()
        if self._engine is not None:
            self._inherited.append(self._engine)
            self._engine = None

    def get(self) -> Engine:
        with self._lock:
            if self._engine is None:
                settings = get_settings()
                close_data_folder(settings)
                config = SqliteConfig.from_settings(settings)
                if process_scope().peek(BeginningAllowed) is not None:
                    config = replace(config, may_begin_among_files=True)
                self._engine = open_sqlite(config, system_runtime())
            return self._engine

    def peek(self) -> Engine | None:
        return self._engine

    def put(self, engine: Engine) -> None:
        """Share an engine that was opened elsewhere."""
        with self._lock:
            self._engine = engine


def shared_engine() -> SharedEngine:
    return process_scope().get(SharedEngine, SharedEngine)


async def get_engine() -> Engine:
    """Return this process's engine. Its calls work on every event loop."""
    shared = shared_engine()
    engine = shared.peek()
    return await asyncio.to_thread(shared.get) if engine is None else engine


async def existing_engine() -> Engine | None:
    """Return this process's engine; None where no run was ever, because looking never makes a store."""
    if shared_engine().peek() is None and not await asyncio.to_thread(get_settings().coordinator_db.exists):
        return None
    return await get_engine()


def get_engine_blocking() -> Engine:
    """Return this process's engine, for code without an event loop."""
    return shared_engine().get()


async def close_engine() -> None:
    """Close this process's engine, if there is one; the next use opens it anew."""
    shared = process_scope().drop(SharedEngine)
    engine = None if shared is None else shared.peek()
    if engine is not None:
        await engine.close()
