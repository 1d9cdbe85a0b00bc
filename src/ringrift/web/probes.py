"""The daemon behind HEALTH_SERVER: takes pictures of the control process and serves probes and live page.

The picture is taken on the control loop, the answers are given from the server's thread. Where the server
listens is written beside the engine's database, so that the `ringrift` command finds a running process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from ringrift.daemons.reader import DaemonReader
from ringrift.engine.opening import get_engine
from ringrift.errors import Unavailable
from ringrift.events.router import get_router
from ringrift.events.tracing import continued, extract
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings
from ringrift.status import HealthCheckResult
from ringrift.web.address import Address, forget_address, write_address
from ringrift.web.endpoints import PostedEvent, Probes
from ringrift.web.live_stream import LiveStream
from ringrift.web.picture import take_picture
from ringrift.web.run_reader import RunReader
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import SnapshotBoard

log = structlog.get_logger()

PICTURE_EVERY_S = 1.0
PUBLISH_S_MAX = 30.0


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
        host = self._settings.health_host
        probes = Probes(self._board, self._publish, self._runtime, host=host)
        server = ProbeServer(probes.app(), host=host, port=self._settings.health_port)
        folder = self._settings.coordination_dir
        address = Address.of_this_process(server.url)
        try:
            server.start()
            self._server = server
            await asyncio.to_thread(write_address, folder, address)
            log.info("probes.listening", url=server.url)
            on_ready()
            await self._take_pictures()
        finally:
            self._server = None
            await asyncio.shield(asyncio.to_thread(_close, server, probes.stream, folder, address))

    async def _take_pictures(self) -> None:
        run, kv = RunReader(), (await get_engine()).kv
        while True:
            status = await run.read(kv)
            self._board.show(take_picture(self._manager, self._router, self._runtime, run=status))
            await self._runtime.sleep(PICTURE_EVERY_S)

    def health_check(self) -> HealthCheckResult:
        server = self._server
        if server is None or not server.is_serving:
            return HealthCheckResult.unhealthy("the probe server's thread has ended")
        return HealthCheckResult.ok(f"listening on {server.url}")

    async def _publish(self, posted: PostedEvent, headers: Mapping[str, str]) -> str:
        """Called on the server's loop; the event itself is published on the control loop."""
        assert self._control_loop is not None, "the server runs only while the daemon does"
        handed_over = asyncio.run_coroutine_threadsafe(
            self._publish_here(posted, headers), self._control_loop
        )
        try:
            async with asyncio.timeout(PUBLISH_S_MAX):
                return await asyncio.wrap_future(handed_over)
        except TimeoutError:
            raise Unavailable(f"the event's handlers took more than {PUBLISH_S_MAX:g} s") from None

    async def _publish_here(self, posted: PostedEvent, headers: Mapping[str, str]) -> str:
        with continued(extract(headers)):
            event = await self._router.publish(posted.event_type, posted.payload, posted.source)
        return event.event_id


def _close(server: ProbeServer, stream: LiveStream, folder: Path, address: Address) -> None:
    stream.close()
    server.stop()
    forget_address(folder, address)
