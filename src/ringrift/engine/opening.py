"""Opening an engine, and the one that this process shares."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Engine, KeyValue
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.files import close_to_others, make_private_folder
from ringrift.process import process_scope
from ringrift.runtime import Runtime, SystemRuntime, system_runtime
from ringrift.settings import Settings, read_settings

__all__ = [
    "close_data_folder",
    "close_engine",
    "engine_at",
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
    with translated_errors(folder):
        make_private_folder(folder)
        # A folder elsewhere may be shared on purpose, and holds files that are not ours.
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


def _settings() -> Settings:
    """Those of this process, whose engine this is; whoever opens another one hands its settings in."""
    return process_scope().get(Settings, read_settings)


def _config_of_run() -> SqliteConfig:
    """Of the data folder that the settings name, which is closed to others on the way."""
    settings = _settings()
    close_data_folder(settings)
    config = SqliteConfig.from_settings(settings)
    if process_scope().peek(BeginningAllowed) is not None:
        config = replace(config, may_begin_among_files=True)
    return config


class SharedEngine:
    """An engine of this process: opened on first use, by whoever comes first."""

    def __init__(self, config: Callable[[], SqliteConfig] = _config_of_run) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._inherited: list[Engine] = []
        self._before_close: list[Callable[[], Awaitable[None]]] = []
        # SQLite connections and locks must not be used on both sides of a fork.
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """A child opens its own. It must not close the parent's, so it keeps it out of the way."""
        self._lock = threading.Lock()
        self._before_close = []
        if self._engine is not None:
            self._inherited.append(self._engine)
            self._engine = None

    def before_close(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Let *finish*, which has a deadline and no errors, write what it has left before this is closed."""
        self._before_close.append(finish)

    async def finish(self) -> None:
        while self._before_close:
            await self._before_close.pop()()

    def get(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = open_sqlite(self._config(), system_runtime())
            return self._engine

    def peek(self) -> Engine | None:
        return self._engine

    def put(self, engine: Engine) -> None:
        """Share an engine that was opened elsewhere."""
        with self._lock:
            self._engine = engine


def shared_engine() -> SharedEngine:
    return process_scope().get(SharedEngine, SharedEngine)


async def shared_kv() -> KeyValue:
    """Return the keys and values of this process's engine, for handles that mostly ask."""
    return (await engine_on_demand()).kv


async def get_engine() -> Engine:
    """Return this process's engine. Its calls work on every event loop."""
    shared = shared_engine()
    engine = shared.peek()
    # opening reads and migrates a file
    return await asyncio.to_thread(shared.get) if engine is None else engine


async def existing_engine() -> Engine | None:
    """Return this process's engine; None where no run was ever, because looking never makes a store."""
    return await get_engine() if await asyncio.to_thread(has_store) else None


# Calls of the ports that change nothing, and so need no store to be there.
_ASKS = (
    frozenset(("get", "entries", "changes", "watch"))  # of the key-value port
    | frozenset(("get", "counts", "dead", "ready", "delayed", "blocked", "claimed", "unended", "ended"))
    | frozenset(("read", "bounds", "seq_at", "wait", "positions"))
    | frozenset(("open", "path", "has", "size", "verify", "digests"))
)


class _EmptyEngine:
    """What is asked while there is no store. Its time is its own: a store that comes later has another."""

    def __init__(self) -> None:
        self.engine = memory_engine(SystemRuntime())


class _PortOnDemand:
    """A port of this process's engine where there is no store yet: the first write makes it."""

    def __init__(self, name: str, empty: Engine) -> None:
        self._name, self._empty = name, empty

    def __getattr__(self, call: str) -> Any:
        # Whoever holds on to it, as a lease does, reads what was written since.
        if (engine := shared_engine().peek()) is not None:
            return getattr(getattr(engine, self._name), call)
        if call in _ASKS:
            return getattr(getattr(self._empty, self._name), call)

        async def write(*args: Any, **options: Any) -> Any:
            return await getattr(getattr(await get_engine(), self._name), call)(*args, **options)

        return write


async def engine_on_demand() -> Engine:
    """Return this process's engine, for handles that mostly ask: without a store the answers are empty ones.

    Once this process has the engine, because something was written, it is that one.
    """
    is_made = shared_engine().peek() is not None
    if is_made or await asyncio.to_thread(lambda: has_store() or not _could_be_made()):
        return await get_engine()  # or its error: what cannot be opened is unknown, and not empty
    empty = process_scope().get(_EmptyEngine, _EmptyEngine).engine
    ports: dict[str, Any] = {name: _PortOnDemand(name, empty) for name in ("events", "queue", "kv", "blobs")}
    return Engine(lifecycle=empty.lifecycle, **ports)


def _could_be_made() -> bool:
    """Whether nothing but its absence keeps the store of this process from being there."""
    return next(each for each in _settings().coordinator_db.absolute().parents if each.exists()).is_dir()


def has_store() -> bool:
    """Whether this process has an engine, or its data folder holds one."""
    return shared_engine().peek() is not None or _settings().coordinator_db.exists()


def get_engine_blocking() -> Engine:
    """Return this process's engine, for code without an event loop."""
    return shared_engine().get()


def _config_at(path: Path, settings: Settings) -> SqliteConfig:
    """Of a database that somebody named by its path: all that is kept beside it has its name."""
    return replace(
        SqliteConfig.from_settings(settings),
        database=path,
        blob_dir=path.with_name(f"{path.name}.blobs"),
        may_begin_in_empty_file=True,
    )


async def open_engine_at(path: Path, settings: Settings, runtime: Runtime) -> Engine:
    """Open an engine of the caller's own on a database file; what else is in its folder is not touched."""
    return await asyncio.to_thread(open_sqlite, _config_at(path, settings), runtime)


class EnginesByPath:
    """Engines that somebody named by the path of their database, one for each in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[Path, SharedEngine] = {}

    def at(self, path: Path) -> Engine:
        config = _config_at(path, _settings())
        with self._lock:
            shared = self._engines.setdefault(path, SharedEngine(lambda: config))
        return shared.get()

    def opened(self) -> list[Engine]:
        return [engine for shared in self._engines.values() if (engine := shared.peek()) is not None]


def engine_at(db_path: Path | str | None = None) -> Engine:
    """Return the engine whose database is *db_path*, made if it is absent; this process's without a path.

    Blocks. The same path gives the same engine for the life of the process, or until `close_engine`.
    """
    path = None if db_path is None else Path(db_path).absolute()
    # One engine for one database, by whichever way it was asked for.
    if path is None or path == _settings().coordinator_db.absolute():
        return get_engine_blocking()
    return process_scope().get(EnginesByPath, EnginesByPath).at(path)


async def close_engine() -> None:
    """Close this process's engines, if there are any; the next use opens them anew."""
    if (open_now := process_scope().peek(SharedEngine)) is not None:
        await open_now.finish()
    # Dropped first: whoever asks while they close gets a new one, not one that is half closed.
    shared, by_path = process_scope().drop(SharedEngine), process_scope().drop(EnginesByPath)
    engine = None if shared is None else shared.peek()
    for each in (engine, *([] if by_path is None else by_path.opened())):
        if each is not None:
            await each.close()
