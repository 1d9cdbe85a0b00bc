"""The work queue of an engine in the words of the documents, for code without an event loop.

Items go to one claimant at a time. A claim ends with its lease: whoever comes too late is refused with
`LeaseLost`, and an item is never completed twice. A database file of one's own is opened on first use and
stays open until the process ends or closes its engines (`close_engine`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ringrift.engine.arguments import check_database
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import engine_at, engine_on_demand, existing_engine
from ringrift.engine.ports import Claimant, Engine, NewWork, WorkQueue, WorkState
from ringrift.errors import ConfigError
from ringrift.process import SingletonMixin
from ringrift.work.tasks import STATUS_OF, as_documented, work_queue_status

__all__ = ["QueueHandle", "get_work_queue", "reset_work_queue"]

PRIORITY = 50
# Those who use this handle renew by hand, if at all, so a lease lasts for a long job.
LEASE_S = 3600.0
ANSWER_S = 30.0


class QueueHandle(SingletonMixin):
    """`WorkQueue(db_path)`: the queue in a database file, or without a path that of this process."""

    def __init__(self, db_path: Path | str | None = None) -> None:
        self.db_path = check_database("db_path", db_path)
        self._tokens: dict[str, int] = {}  # of the claims that were made through this handle

    async def port(self) -> WorkQueue:
        """Return the queue itself, for code on an event loop."""
        return (await self._engine()).queue

    async def _engine(self) -> Engine:
        if self.db_path is None:
            return await engine_on_demand()
        return await asyncio.to_thread(engine_at, self.db_path)

    async def _existing(self) -> Engine | None:
        """The engine to ask; None if this process has no store yet, which asking does not make."""
        return await existing_engine() if self.db_path is None else await self._engine()

    async def _add(
        self,
        work_type: str,
        config: Mapping[str, Any] | None = None,
        priority: int = PRIORITY,
        *,
        work_id: str | None = None,
        depends_on: str | Iterable[str] = (),
        max_attempts: int = 3,
        target_node: str | None = None,
        requires_gpu: bool = False,
    ) -> str:
        """Add an item and return its id. A higher priority goes first; *depends_on* is one id or several."""
        new = NewWork(
            kind=work_type,
            payload=dict(config or {}),
            id=work_id,
            priority=priority,
            requires=frozenset({"gpu"}) if requires_gpu else frozenset(),
            node=target_node,
            after=_texts("depends_on", depends_on),
            attempts_max=max_attempts,
        )
        (added,) = await (await self.port()).add([new])
        return added

    async def _claim(
        self,
        node_id: str,
        capabilities: str | Iterable[str] | None = None,
        *,
        has_gpu: bool = False,
        lease_seconds: float = LEASE_S,
    ) -> dict[str, Any] | None:
        """Take the next item of the kinds in *capabilities* (None: any); None if there is none."""
        claimant = Claimant(
            worker=node_id,
            node=node_id,
            capabilities=frozenset({"cpu", "gpu"} if has_gpu else {"cpu"}),
            kinds=None if capabilities is None else frozenset(_texts("capabilities", capabilities)),
        )
        queue = await self.port()
        claims = await queue.claim(claimant, lease_s=lease_seconds)
        if not claims:
            return None
        # Callers know items by id alone; the queue wants the token with every word about one.
        self._tokens[claims[0].id] = claims[0].token
        item = await queue.get(claims[0].id)
        assert item is not None  # what is claimed is kept
        return as_documented(item)

    async def _renew(self, work_id: str, lease_seconds: float = LEASE_S) -> float:
        """Say that an item is still worked on; return when its lease ends now."""
        return await (await self.port()).renew(work_id, token=self._token(work_id), lease_s=lease_seconds)

    async def _complete(self, work_id: str, result: Mapping[str, Any] | None = None) -> None:
        """End an item well; `LeaseLost` if its lease ran out in between."""
        await (await self.port()).complete(work_id, token=self._token(work_id), result=dict(result or {}))
        # Only once it is stored: a call that found no store is made again with the same token.
        self._tokens.pop(work_id, None)

    async def _fail(self, work_id: str, error: str, *, final: bool = False) -> str:
        """Count a failed attempt; return `pending` if it will be tried again, else `failed`."""
        queue = await self.port()
        state = await queue.fail(work_id, token=self._token(work_id), error=error, final=final)
        self._tokens.pop(work_id, None)
        return STATUS_OF[state]

    async def _release(self, work_id: str) -> None:
        """Give an item back untouched; the attempt is not counted."""
        await (await self.port()).release(work_id, token=self._token(work_id))
        self._tokens.pop(work_id, None)

    async def _cancel(self, work_id: str, reason: str = "asked for") -> bool:
        """Cancel an item; False if it has ended or was never there."""
        return await (await self.port()).cancel(work_id, reason=reason)

    async def _get(self, work_id: str) -> dict[str, Any] | None:
        """Return what is known of an item; None if it is not there."""
        item = await (await self.port()).get(work_id)
        return None if item is None else as_documented(item)

    async def _status(self) -> dict[str, Any]:
        """Return how many items there are by status and type, and those that wait and run; None: unknown."""
        return await work_queue_status(await self._existing())

    async def _depth(self) -> int | None:
        """Return how many items wait; None where no store is that could tell."""
        if (engine := await self._existing()) is None:
            return None
        counts = await engine.queue.counts()
        waiting = (WorkState.READY, WorkState.BLOCKED)
        return sum(states.get(state, 0) for states in counts.values() for state in waiting)

    add_work = blocking(_add, timeout_s=ANSWER_S)
    claim_work = blocking(_claim, timeout_s=ANSWER_S)
    renew_work = blocking(_renew, timeout_s=ANSWER_S)
    complete_work = blocking(_complete, timeout_s=ANSWER_S)
    fail_work = blocking(_fail, timeout_s=ANSWER_S)
    release_work = blocking(_release, timeout_s=ANSWER_S)
    cancel_work = blocking(_cancel, timeout_s=ANSWER_S)
    get_work = blocking(_get, timeout_s=ANSWER_S)
    get_status = blocking(_status, timeout_s=ANSWER_S)
    get_queue_depth = blocking(_depth, timeout_s=ANSWER_S)

    def _token(self, work_id: str) -> int:
        token = self._tokens.get(work_id)
        if token is None:
            raise ConfigError(f"{work_id} was not claimed through this queue; claim_work() gives items out")
        return token


def _texts(name: str, given: str | Iterable[str] | None) -> tuple[str, ...]:
    """One text is one, not its letters."""
    if not isinstance(given, Iterable):
        raise ConfigError(f"{name} is {given!r}; it must be a text, or several")
    texts = (given,) if isinstance(given, str) else tuple(given)
    if wrong := [each for each in texts if not isinstance(each, str) or not each]:
        raise ConfigError(f"{name} holds {wrong[0]!r}; it must be a text, or several")
    return texts


def get_work_queue(db_path: Path | str | None = None) -> QueueHandle:
    """Return the queue of this process; another *db_path* than it was made with is a `ConfigError`."""
    return QueueHandle.get_instance() if db_path is None else QueueHandle.get_instance(Path(db_path))


reset_work_queue = QueueHandle.reset_instance
