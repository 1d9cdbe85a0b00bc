"""The daemon behind HEALTH_SERVER: takes snapshots of the control process and serves probes and live page.

The snapshot is taken on the control loop, the answers are given from the server's thread. Where the server
listens is written beside the engine's database, so that the `ringrift` command finds a running process.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ringrift.coordination.event_router import get_router
from ringrift.daemons.status import DaemonReader
from ringrift.engine.opening import get_engine
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.waiting import Waiter
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.tracing import continued, extract
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import secret_in
from ringrift.learning.pauses import ALL, Pause, Pauses
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings
from ringrift.status import HealthCheckResult
from ringrift.tls import own_files
from ringrift.web.access import TOKEN_FILE, AccessKeys
from ringrift.web.address import Address, forget_address, write_address
from ringrift.web.endpoints import PostedEvent, PostedRequest, Probes, events_by_http
from ringrift.web.live_stream import LiveStream
from ringrift.web.run_reader import RunReader
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import FRESH_S, UNASKED_S, SnapshotBoard, take_snapshot

log = structlog.get_logger()

ACTION_S_MAX = 30.0
REASON_CHARS_MAX = 500
T = TypeVar("T")


def http_token(settings: Settings) -> str:
    """The token of the data folder, made fresh for its owner alone if there is none."""
    path = settings.data_dir / TOKEN_FILE
    with translated_errors(path):
        return secret_in(path)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on *host*."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class HealthServerDaemon:
    """Serves the probes and the live page for as long as it runs."""

    emits: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        manager: DaemonReader,
        runtime: Runtime | None = None,
        router: UnifiedEventRouter | None = None,
        app_settings: Settings | None = None,
    ) -> None:
        self._manager = manager
        self._runtime = runtime or system_runtime()
        self._router = router or get_router()
        self._settings = app_settings or get_settings()
        self._board = SnapshotBoard()
        self._server: ProbeServer | None = None
        self._control_loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str | None:
        """Where it listens; None while it does not."""
        return None if self._server is None else self._server.url

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        """Serve until cancelled."""
        self._control_loop = asyncio.get_running_loop()
        settings, host = self._settings, self._settings.health_host
        token = await asyncio.to_thread(http_token, settings)
        probes = Probes(
            self._board,
            self,
            self._runtime,
            keys=AccessKeys(token, self._runtime),
            events=events_by_http(settings.http_events),
        )
        open_to_read = is_loopback(host) and not settings.http_read_needs_token
        app = probes.app(names=(host, *settings.http_names), open_to_read=open_to_read)
        tls = await asyncio.to_thread(own_files, settings, self._runtime) if settings.health_tls else None
        server = ProbeServer(app, host=host, port=settings.health_port, tls=tls)
        folder = settings.coordination_dir
        address = Address.of_this_process(server.url)
        try:
            server.start()
            self._server = server
            await asyncio.to_thread(write_address, folder, address)
            log.info("probes.listening", url=server.url)
            on_ready()
            await self._take_snapshots()
        finally:
            self._server = None
            await asyncio.shield(asyncio.to_thread(_close, server, probes.stream, folder, address))

    async def _take_snapshots(self) -> None:
        """Once a second while somebody asks, else just often enough to tell that the loop lives."""
        run, engine, asked = RunReader(), await get_engine(), Waiter()
        self._board.ask = asked.wake
        while True:
            status = await run.read(engine.kv)
            status_view = take_snapshot(
                self._manager, self._router, self._runtime, run=status, engine_failure=engine.failure
            )
            self._board.show(status_view)
            await self._runtime.sleep(FRESH_S)
            if not self._board.is_watched:
                await asked.wait(self._runtime, UNASKED_S - FRESH_S)

    def health_check(self) -> HealthCheckResult:
        server = self._server
        if server is None or not server.is_serving:
            return HealthCheckResult.unhealthy("the probe server's thread has ended")
        return HealthCheckResult.ok(f"listening on {server.url}")

    # --- what a request with the key may do; called on the server's loop, done on the control loop -------

    async def publish(self, event: PostedEvent, headers: Mapping[str, str]) -> str:
        return await self._on_control_loop(self._publish_here(event, headers))

    async def pause(self, request: PostedRequest) -> None:
        await self._on_control_loop(self._ask_for(request, paused=True))

    async def resume(self, request: PostedRequest) -> None:
        await self._on_control_loop(self._ask_for(request, paused=False))

    async def _on_control_loop(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._control_loop is not None, "the server runs only while the daemon does"
        handed_over = asyncio.run_coroutine_threadsafe(work, self._control_loop)
        try:
            async with asyncio.timeout(ACTION_S_MAX):
                return await asyncio.wrap_future(handed_over)
        except TimeoutError:
            raise Unavailable(f"the control process took more than {ACTION_S_MAX:g} s") from None

    async def _ask_for(self, request: PostedRequest, *, paused: bool) -> None:
        pauses, now_s = Pauses((await get_engine()).kv), self._runtime.now_s()
        latest = self._board.latest()
        known = () if latest is None or latest.run is None else tuple(latest.run.configs)
        if request.config not in (None, *known):
            raise ConfigError(f"{request.config!r:.100} is not learned here; there are {', '.join(known)}")
        if paused:
            pause = Pause(reason=request.reason[:REASON_CHARS_MAX], by="the live page", at_s=now_s)
            await pauses.set(request.config or ALL, pause)
        elif request.config is None:
            await pauses.end_all()
        else:
            await pauses.end([request.config])

    async def _publish_here(self, posted: PostedEvent, headers: Mapping[str, str]) -> str:
        with continued(extract(headers)):
            event = await self._router.publish(posted.event_type, posted.payload, posted.source)
        return event.event_id


def _close(server: ProbeServer, stream: LiveStream, folder: Path, address: Address) -> None:
    stream.close()
    server.stop()
    forget_address(folder, address)
