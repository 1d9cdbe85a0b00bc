"""The restart records in use, and their way to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from ringrift.daemons.ledger_store import LedgerStore
from ringrift.daemons.restarts import RestartPolicy, RestartRecord, RestartVerdict, clear, on_crash
from ringrift.daemons.types import DaemonType
from ringrift.runtime import Runtime

log = structlog.get_logger()


class RestartLedger:
    """Every crash is decided and written down here. A failing store is reported and never stops a restart."""

    def __init__(self, store: LedgerStore, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime
        self._records: dict[str, RestartRecord] | None = None
        self._changed: dict[str, RestartRecord] = {}  # not written yet
        self._writer: asyncio.Task[None] | None = None
        self.store_failures = 0

    def open(self) -> None:
        """Forget a writer of an earlier loop."""
        self._writer = None

    def look_again(self) -> None:
        """Read the store anew with the next question, where another process writes it."""
        if not self._changed:
            self._records = None

    def record(self, daemon_type: DaemonType) -> RestartRecord:
        return self._loaded().get(str(daemon_type), RestartRecord())

    def crashed(
        self, daemon_type: DaemonType, policy: RestartPolicy, *, ran_s: float, error: str
    ) -> RestartVerdict:
        """Decide about a crash and write it down."""
        record, verdict = on_crash(
            self.record(daemon_type),
            policy,
            now_s=self._runtime.now_s(),
            ran_s=ran_s,
            luck=self._runtime.rng.uniform(-1.0, 1.0),
            error=error,
        )
        self._keep(daemon_type, record)
        return verdict

    def clear(self, daemon_type: DaemonType) -> None:
        """Forget the crashes of a daemon."""
        if str(daemon_type) in self._loaded():
            self._keep(daemon_type, clear(self.record(daemon_type)))

    def failed_for_good(self, daemon_type: DaemonType) -> bool:
        return self.record(daemon_type).failed_for_good(now_s=self._runtime.now_s())

    def recent(self, types: Iterable[DaemonType], *, within_s: float) -> dict[DaemonType, int]:
        """Return the number of restarts of the last *within_s* by daemon, without zeros."""
        now_s = self._runtime.now_s()
        counts = {t: self.record(t).within(within_s, now_s=now_s) for t in types}
        return {daemon_type: count for daemon_type, count in counts.items() if count}

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until all is written, at most *timeout_s*."""
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=timeout_s)

    def _loaded(self) -> dict[str, RestartRecord]:
        if self._records is None:
            self._records = self._store.load(now_s=self._runtime.now_s())
        return self._records

    def _keep(self, daemon_type: DaemonType, record: RestartRecord) -> None:
        self._loaded()[str(daemon_type)] = self._changed[str(daemon_type)] = record
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # cleared from outside a loop, where nobody would come back to write it
            asyncio.run(self._write())
            return
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write(), name="daemon-ledger")

    async def _write(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, {}
            try:
                await self._store.save(changed, now_s=self._runtime.now_s())
            except OSError as error:
                self.store_failures += 1
                self._changed = {**changed, **self._changed}  # written with the next change
                log.warning("daemons.ledger_not_written", error=str(error))
                return
