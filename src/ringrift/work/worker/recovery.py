"""What killed workers left behind: processes that still run, claims nobody keeps, folders of ended items.

A worker holds a lock on its name for as long as it lives, however it dies. A folder whose worker's lock is
free is nobody's: its processes are ended and its item goes back at once, before its lease runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from ringrift.engine.lock_files import LockFile
from ringrift.engine.ports import Engine
from ringrift.engine.work_rules import ENDED
from ringrift.errors import Conflict, LeaseLost
from ringrift.files import make_folders
from ringrift.work.job.command import end_processes_in
from ringrift.work.job.folder import JobFolder, JobFolders, JobRecord
from ringrift.work.worker.events import WorkerEvents

log = structlog.get_logger()

ABANDONED_MAX = 5  # an item that workers die over so often may be the reason
_NAMES = ".workers"


class WorkerNames:
    """The names that living workers of this node hold."""

    def __init__(self, root: Path) -> None:
        self._folder = root / _NAMES
        self._held: dict[str, LockFile] = {}

    def take(self, name: str) -> None:
        """Hold *name* until `let_go` or the end of the process; `Conflict` if a living worker has it."""
        lock = self._lock(name)
        if not lock.try_lock():
            lock.close()
            raise Conflict(f"a worker called {name!r} runs already on this data folder")
        self._held[name] = lock

    def let_go(self) -> None:
        for lock in self._held.values():
            lock.close()
        self._held.clear()

    def is_free(self, name: str) -> bool:
        """Whether no living process has *name*; our own is not free."""
        if name in self._held:
            return False
        lock = self._lock(name)
        try:
            return lock.try_lock()
        finally:
            lock.close()

    def _lock(self, name: str) -> LockFile:
        make_folders(self._folder)
        return LockFile(self._folder / f"{name}.lock")


class Recovery:
    """Puts in order what is nobody's; harmless if several workers do it at the same time."""

    def __init__(self, engine: Engine, folders: JobFolders, names: WorkerNames, events: WorkerEvents) -> None:
        self._engine, self._folders, self._names, self._events = engine, folders, names, events

    async def at_start(self, own_name: str) -> None:
        """Whatever carries our name is of a worker before us: we hold the name and have not begun."""
        await self._sweep(lambda name: name == own_name or self._names.is_free(name))
        await self._give_back_claims_of(own_name)

    async def _give_back_claims_of(self, name: str) -> None:
        """What was claimed and had no folder yet: nothing of it has run, so it costs no attempt."""
        for item in await self._engine.queue.claimed():
            if item.holder != name:
                continue
            log.warning("worker.found_claimed", item=item.id, worker=name)
            try:
                await self._engine.queue.release(item.id, token=item.token)
            except LeaseLost:
                continue  # it ran out just now

    async def now_and_then(self) -> None:
        await self._sweep(self._names.is_free)

    async def _sweep(self, is_dead: Callable[[str], bool]) -> None:
        for folder in await asyncio.to_thread(self._folders.all):
            record = await asyncio.to_thread(folder.read_record)
            if record is None or self._folders.of(record.item_id).path != folder.path:
                # Half made, or a record that its job made up, which must not reach another item.
                await self._remove_if_ended(folder)
                continue
            if record.worker is not None and await asyncio.to_thread(is_dead, record.worker):
                await self._take_back(folder, record)
            item = await self._engine.queue.get(record.item_id)
            if item is None or item.state in ENDED:
                await asyncio.to_thread(folder.remove)

    async def _remove_if_ended(self, folder: JobFolder) -> None:
        """Go by the name of the folder, where nothing in it can be believed."""
        item = await self._engine.queue.get(self._folders.item_of(folder))
        if item is not None and item.state in ENDED:
            await asyncio.to_thread(folder.remove)

    async def _take_back(self, folder: JobFolder, record: JobRecord) -> None:
        if not await _is_unchanged(folder, record):
            return
        ended = await asyncio.to_thread(end_processes_in, folder.out)
        if not await _is_unchanged(folder, record):
            return
        worker, record.worker, record.abandoned = record.worker, None, record.abandoned + 1
        try:
            await asyncio.to_thread(folder.write_record, record)
        except OSError as error:  # a full disk; whoever claims the item next makes the folder his own
            log.warning("worker.folder_not_left", item=record.item_id, error=str(error))
        log.warning("worker.found_abandoned", item=record.item_id, worker=worker, processes=ended)
        await self._events.orphaned(record.item_id, record.kind)
        queue = self._engine.queue
        try:
            if record.abandoned < ABANDONED_MAX:
                await queue.release(record.item_id, token=record.token)
            else:
                why = f"{record.abandoned} workers were killed while they worked on it"
                await queue.fail(record.item_id, token=record.token, error=why)
        except LeaseLost:
            return  # it ran out already


async def _is_unchanged(folder: JobFolder, record: JobRecord) -> bool:
    """Whether no other attempt or sweep has made the folder its own since *record* was read."""
    return await asyncio.to_thread(folder.read_record) == record
