"""The one way to ask for a sync: `sync`, `SyncFacade`, `get_sync_facade`.

A request goes to the backend that suits it and, where files could not be brought, on to the next of its
chain; each attempt goes on from what the last one achieved. A request counts once, whatever it takes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import structlog

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import get_node_reports, open_data_plane
from ringrift.data.config import AutoSyncConfig, read_sync_config
from ringrift.data.manifest.catalog import Cataloger
from ringrift.data.plane import DataPlane
from ringrift.data.sync.cluster_view import NodeReportCollector, read_cluster_view
from ringrift.data.sync.executor import (
    NodeTransferResult,
    SyncAnnouncer,
    SyncExecutor,
    SyncPace,
    SyncProgress,
    SyncResult,
)
from ringrift.data.sync.plan import NodeTransfer, SyncPlan
from ringrift.data.sync.requests import (
    RequestLeft,
    SyncBackend,
    SyncRequest,
    SyncResponse,
    plan_request,
    read_request,
)
from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.foreign_files.paths import parse_config_key
from ringrift.process import SingletonMixin, getter_of
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = ["SyncFacade", "get_sync_facade", "reset_sync_facade", "sync"]

log = structlog.get_logger()

ORPHAN_RECOVERY = "orphan_games_recovery"
_REMEMBERED = 100
_ERRORS_MAX = 100
_DIGESTS_SHOWN = 100
_LOCK_WAIT_S_MAX = 60.0  # for a host that another syncs
_WAITED_S = 3.0  # for a node that says nothing; one that refuses does so at once, and may be asked again

_CHAINS: Mapping[SyncBackend, tuple[SyncBackend, ...]] = {
    SyncBackend.AUTO_SYNC: (SyncBackend.ROUTER, SyncBackend.DISTRIBUTED),
    SyncBackend.CLUSTER_SYNC: (SyncBackend.AUTO_SYNC, SyncBackend.DISTRIBUTED),
    SyncBackend.ROUTER: (SyncBackend.DISTRIBUTED, SyncBackend.AUTO_SYNC),
    SyncBackend.DISTRIBUTED: (SyncBackend.AUTO_SYNC,),
    SyncBackend.EPHEMERAL: (SyncBackend.AUTO_SYNC, SyncBackend.DISTRIBUTED),
}


def choose_backend(request: SyncRequest) -> SyncBackend:
    """Pick by what the request says, the first that fits."""
    if request.prefer_ephemeral:
        return SyncBackend.EPHEMERAL
    if request.priority in ("high", "critical"):
        return SyncBackend.CLUSTER_SYNC
    if request.explicit_targets:
        return SyncBackend.ROUTER
    return SyncBackend.AUTO_SYNC


@dataclass(slots=True)
class _Run:
    """One request on its way."""

    request: SyncRequest
    started_s: float
    result: SyncResult = field(default_factory=SyncResult)  # of all attempts
    plan: SyncPlan = field(default_factory=SyncPlan)
    errors: list[str] = field(default_factory=list)
    owed: frozenset[tuple[str, str]] = frozenset()  # (node, digest): what the first plan was to bring
    silent: frozenset[str] = frozenset()  # nodes that no further backend waits for
    backend: SyncBackend = SyncBackend.AUTO_SYNC
    done: bool = False


class SyncFacade(SingletonMixin):
    """Routes requests and keeps count. Without a plane of its own it uses this process's."""

    capability: ClassVar[str] = "game_sync"
    emits: ClassVar[tuple[str, ...]] = (
        "DATA_SYNC_STARTED",
        "DATA_SYNC_COMPLETED",
        "DATA_SYNC_FAILED",
        "PRIORITY_SYNC_COMPLETED",
        "PRIORITY_SYNC_FAILED",
        "ORPHAN_GAMES_REGISTERED",
    )

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        config: AutoSyncConfig | None = None,
        reports: NodeReportCollector | None = None,
    ) -> None:
        self._plane, self._config = plane, config
        self._reports = reports or get_node_reports()
        self._announcer = SyncAnnouncer("sync_facade", router=lambda: router or get_router())
        self.serves = False  # whether the coordinator of this process syncs through it
        self._total, self._errors, self._bytes = 0, 0, 0
        self._by_backend: Counter[str] = Counter()
        self._recent: deque[bool] = deque(maxlen=_REMEMBERED)
        self._backends: set[SyncBackend] = set()
        self._last_error = ""
        self._under_way: dict[int, SyncProgress] = {}

    async def sync(self, request: SyncRequest | Mapping[str, Any] | str, **options: Any) -> SyncResponse:
        """Bring data where it is asked to be; `ConfigError` for a request that cannot be understood."""
        asked = read_request(request, options)
        plane = self._plane or await open_data_plane()
        run = _Run(asked, plane.runtime.monotonic_s(), backend=choose_backend(asked))
        try:
            async with asyncio.timeout(asked.timeout_seconds):
                await Cataloger(plane).catalog()  # what was sealed a moment ago is asked for as well
                await self._attempts(plane, run)
        except TimeoutError:
            run.errors.append(f"{run.backend.value}: timed out after {asked.timeout_seconds:g} s")
            await self._note_unfinished(plane, run)
        response = self._response(plane, run)
        await self._count(plane, run, response)
        return response

    async def trigger_priority_sync(
        self, reason: str, source_node: str, config_key: str | None = None, data_type: str = "games"
    ) -> SyncResponse:
        """Bring to safety, at once and confirmed, what *source_node* holds: here, or from here to others."""
        plane = self._plane or await open_data_plane()
        board, players = _split(config_key)
        response = await self.sync(
            SyncRequest(
                data_type=data_type,
                board_type=board,
                num_players=players,
                priority="critical",
                require_confirmation=True,
                source_node=None if source_node == plane.this.name else source_node,
            )
        )
        await self._announcer.priority(response, node=source_node, config_key=config_key or "")
        if reason == ORPHAN_RECOVERY and response.details["files_moved"]:
            await self._announcer.orphans(response, node=source_node)
        return response

    # --- attempts -------------------------------------------------------------------------------------

    async def _attempts(self, plane: DataPlane, run: _Run) -> None:
        primary = run.backend
        for backend in (primary, *_CHAINS[primary]):
            run.backend = backend
            self._backends.add(backend)
            attempt = await self._attempt(plane, run, backend)
            if backend is primary:
                # Of the first plan alone: a later one is made of what is left, and promises less.
                run.owed = _promised(run, plane.this.name)
            failures = [f"{backend.value}: {error}" for error in attempt.errors]
            if not failures and await _is_kept(plane, run):
                run.done = True
                return
            run.errors += failures
            log.warning("sync.attempt_failed", backend=backend.value, failures=len(failures))
            run.silent |= {end.transfer.node for end in attempt.transfers if _kept_waiting(end)}
            if run.request.source_node in run.silent:
                break  # nobody else is to be asked
        run.backend = primary

    async def _attempt(self, plane: DataPlane, run: _Run, backend: SyncBackend) -> SyncResult:
        reports = self._reports.reports(plane.runtime)
        # For this request only: one silence is not yet known to others as a failure.
        reports = replace(reports, away=reports.away | run.silent)
        cluster = await read_cluster_view(plane, self._config_of(plane), reports=reports)
        left = RequestLeft(request=run.request, confirmed=run.result.confirmed)
        run.plan = await asyncio.to_thread(plan_request, cluster, left, backend)
        if run.plan.is_empty:
            return SyncResult()
        await self._announcer.started(plane, run.plan, by="facade", data_type=run.request.data_type)
        progress = SyncProgress(plane.runtime)
        self._under_way[id(progress)] = progress
        sync_executor = SyncExecutor(plane, progress)
        try:
            return await sync_executor.carry_out(run.plan, _pace_of(run.request))
        finally:
            run.result += sync_executor.result  # what arrived before the time ran out counts, too
            del self._under_way[id(progress)]

    def _config_of(self, plane: DataPlane) -> AutoSyncConfig:
        if self._config is None:
            self._config = read_sync_config(plane.settings.sync)
            self._config.check_nodes(plane.nodes)
        return self._config

    async def _note_unfinished(self, plane: DataPlane, run: _Run) -> None:
        """A host that was not served in time was not synced; its history must say so."""
        sync_executor, started_s = SyncExecutor(plane), plane.runtime.now_s() - run.request.timeout_seconds
        for transfer in run.plan.transfers:
            if transfer.node not in run.result.complete(fetched=transfer.fetch):
                nothing = NodeTransfer(node=transfer.node, artifacts=())
                end = NodeTransferResult(transfer=nothing, broken_off="timed out")
                await sync_executor.note(end, _pace_of(run.request), started_s)

    # --- answers --------------------------------------------------------------------------------------

    def _response(self, plane: DataPlane, run: _Run) -> SyncResponse:
        plan, result, synced = run.plan, run.result, _synced(run, plane.this.name)
        moved = result.moved
        errors = (
            [*plan.refused, *plan.blocked] if not run.errors or run.done else [*run.errors, *plan.refused]
        )
        success = run.done and not plan.refused and not plan.blocked
        return SyncResponse(
            success=success,
            backend_used=run.backend,
            nodes_synced=len(synced),
            bytes_transferred=result.bytes_sent,
            duration_seconds=plane.runtime.monotonic_s() - run.started_s,
            errors=errors[:_ERRORS_MAX],
            details={
                "nodes": sorted(synced),
                "up_to_date": sorted(set(plan.up_to_date) - synced),
                "not_known": sorted(set(plan.not_known) - synced),
                "files_moved": len(moved),
                "digests_moved": sorted({digest for _, digest in moved})[:_DIGESTS_SHOWN],
                "files_confirmed": len(result.confirmed) - len(moved),
                "not_confirmed": _not_confirmed(run),
                "games_synced": result.games,
                "notes": list(plan.notes),
                "errors_left_out": max(0, len(errors) - _ERRORS_MAX),
                "recovered_from": run.errors[:_ERRORS_MAX] if run.done else [],
            },
        )

    async def _count(self, plane: DataPlane, run: _Run, response: SyncResponse) -> None:
        self._total += 1
        self._by_backend[response.backend_used.name.lower()] += 1
        self._bytes += response.bytes_transferred
        self._recent.append(response.success)
        if not response.success:
            self._errors += 1
            self._last_error = response.errors[0] if response.errors else ""
        # A sync that finds everything in place is no event: it happens at every look.
        if not response.success or response.details["files_moved"]:
            await self._announcer.ended(plane, run.request, response)

    @property
    def works_here(self) -> bool:
        return self.serves or self._total > 0 or bool(self._under_way)

    @reported
    def get_stats(self) -> dict[str, Any]:
        return {
            "total_syncs": self._total,
            "by_backend": dict(self._by_backend),
            "total_bytes": self._bytes,
            "total_errors": self._errors,
        }

    def get_progress(self) -> list[dict[str, Any]]:
        """Tell how far each request that is under way has come."""
        return [progress.to_dict() for progress in self._under_way.values()]

    @reported_health
    def health_check(self) -> HealthCheckResult:
        """Judge by the last hundred requests: trouble that is over does not count for ever."""
        recent = len(self._recent)
        share = self._recent.count(False) / recent if recent else 0.0
        details = {
            "operations_count": self._total,
            "errors_count": self._errors,
            "backends_loaded": len(self._backends),
            "recent_error_rate": share,
            "last_error": self._last_error,
        }
        message = f"{share:.0%} of the last {recent} syncs failed"
        if share > 0.5:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, message, details)
        if share > 0.2:
            return HealthCheckResult(True, CoordinatorStatus.DEGRADED, message, details)
        return HealthCheckResult(True, CoordinatorStatus.RUNNING, "", details)


def _synced(run: _Run, this: str) -> set[str]:
    """The nodes that were served: receivers, or the source if all that was asked for was to fetch.

    A node that files only passed through on their way here was not asked about.
    """
    served, sources = set(run.result.complete(fetched=False)), run.result.complete(fetched=True)
    if run.request.source_node is not None:
        return served | sources
    if this in run.request.explicit_targets and sources:
        served.add(this)
    return served


def _kept_waiting(end: NodeTransferResult) -> bool:
    return end.unreachable and not end.moved.arrived and end.seconds >= _WAITED_S


def _promised(run: _Run, this: str) -> frozenset[tuple[str, str]]:
    """Which files are to be where. What is fetched only to be sent on is owed to those that it goes to."""
    for_here = run.request.source_node not in (None, this) or this in run.request.explicit_targets
    arriving = [(transfer.node, transfer) for transfer in run.plan.sends]
    arriving += [(this, transfer) for transfer in run.plan.fetches if for_here]
    return frozenset((node, each.digest) for node, transfer in arriving for each in transfer.artifacts)


async def _is_kept(plane: DataPlane, run: _Run) -> bool:
    """Whether all that was owed is there: that a later plan does not mention a file is no success."""
    owed = run.owed - run.result.confirmed
    if not owed:
        return True
    # The manifest may repeat an old receipt; confirmed is what was read again for this request.
    if run.request.require_confirmation and any(node != plane.this.name for node, _ in owed):
        return False
    manifest = await plane.view()
    return all(manifest.is_at(digest, node) for node, digest in owed)


def _not_confirmed(run: _Run) -> dict[str, list[str]]:
    """By node, the files whose hash was asked for and was not given."""
    left: dict[str, list[str]] = {}
    if run.request.require_confirmation:
        for node, digest in sorted(run.owed - run.result.confirmed):
            left.setdefault(node, []).append(digest)
    return {node: digests[:_DIGESTS_SHOWN] for node, digests in left.items()}


def _pace_of(request: SyncRequest) -> SyncPace:
    return SyncPace(
        priority=request.priority,
        bytes_per_s=request.bytes_per_s,
        data_type=request.data_type,
        read_again=request.require_confirmation,
        lock_wait_s=min(_LOCK_WAIT_S_MAX, request.timeout_seconds / 2),
    )


def _split(config_key: str | None) -> tuple[str | None, int | None]:
    if not config_key:
        return None, None
    key = parse_config_key(config_key)
    return key.board, key.players


get_sync_facade = getter_of("get_sync_facade", SyncFacade)


def reset_sync_facade() -> None:
    SyncFacade.reset_instance()


async def sync(data_type: str, targets: list[str] | None = None, **options: Any) -> SyncResponse:
    """Bring data of one type to *targets*, or to every node that takes it."""
    return await get_sync_facade().sync(data_type, targets=targets, **options)
