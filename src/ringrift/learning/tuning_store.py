"""Searches in the key-value port: one open at a time in the whole system, and a record of the last ones."""

from __future__ import annotations

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists, Conflict
from ringrift.learning.tuning_runs import OptimizationRun

PREFIX = "tuning/run/"
OPEN = "tuning/open"
RUNS_MAX = 100


class TuningStore:
    """Reads and writes runs. The key of the open one is what keeps a second from beginning."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def runs(self) -> list[OptimizationRun]:
        """All that are kept, oldest first."""
        entries = await self._kv.entries(PREFIX)
        runs = [decode_entry(entry, OptimizationRun) for entry in entries]
        return sorted(runs, key=lambda run: (run.started_s, run.run_id))

    async def get(self, run_id: str) -> OptimizationRun | None:
        entry = await self._kv.get(PREFIX + run_id)
        return None if entry is None else decode_entry(entry, OptimizationRun)

    async def open_run(self) -> OptimizationRun | None:
        entry = await self._kv.get(OPEN)
        return None if entry is None else await self.get(entry.value.decode())

    async def begin(self, run: OptimizationRun) -> None:
        """Make *run* the open one. Raises `Conflict` if there is another.

        The record is written first: an open key without a record would keep everybody out for ever.
        """
        await self.put(run)
        try:
            await self._kv.create(OPEN, run.run_id.encode())
        except AlreadyExists:
            await self._kv.delete(PREFIX + run.run_id)
            raise Conflict("another search is under way") from None

    async def put(self, run: OptimizationRun) -> None:
        await self._kv.put(PREFIX + run.run_id, msgspec.json.encode(run))

    async def end(self, run: OptimizationRun) -> None:
        """Write how *run* ended, and let the next begin. Safe to repeat."""
        await self.put(run)
        entry = await self._kv.get(OPEN)
        if entry is not None and entry.value.decode() == run.run_id:
            await self._kv.delete(OPEN, revision=entry.revision)
        for old in (await self.runs())[:-RUNS_MAX]:
            if not old.status.is_open:
                await self._kv.delete(PREFIX + old.run_id)
