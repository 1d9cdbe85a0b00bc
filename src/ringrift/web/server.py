"""The daemon behind HEALTH_SERVER: takes snapshots of the control process and serves probes and live page.

The snapshot is taken on the control loop, the answers are given from the server's thread. Where the server
listens is written beside the engine's database, so that the `ringrift` command finds a running process.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.daemons.status import DaemonReader
from ringrift.engine.opening import get_engine
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.waiting import Waiter
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.tracing import continued, extract
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import secret_in
from ringrift.health.run_status import Address, forget_address, write_address
from ringrift.learning.requests import ALL, Pauses
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings
from ringrift.status import HealthCheckResult
from ringrift.task_owner import TaskOwner
from ringrift.tls import CertificateFiles, own_files
from ringrift.web.access import TOKEN_FILE, AccessKeys
from ringrift.web.endpoints import PostedEvent, PostedRequest, Probes, events_by_http
from ringrift.web.live_stream import LiveStream
from ringrift.web.snapshot import FRESH_S, UNASKED_S, RunReader, SnapshotBoard, take_snapshot
from ringrift.work.limits import Pause

# --- the server ---------------------------------------------------------------------------------------
#
# The HTTP server of the probes: one thread with a loop of its own.
#
# What strangers can hold is bounded: how many connections there are, how large the head of a request is, and
# how long it may take to arrive. When all connections are taken, the one that has waited longest without a
# whole request makes room for a new one, so that idle ones never keep anybody out.


STOP_S = 5.0
TICK_S = 1.0
CONNECTIONS_MAX = 128
HEAD_BYTES_MAX = 16_384
HEAD_S = 10.0
KEEP_ALIVE_S = 15


class _Connection(H11Protocol):
    """One connection that must bring whole requests in time, and makes way while it has none."""

    _deadline: asyncio.TimerHandle | None = None
    _waiting_since_s = 0.0
    _early = b""
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._begun = True
        self._wait_for_a_request()
        if self._early:
            self.data_received(self._early)
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [each for each in self.connections if isinstance(each, _Connection) and each.is_waiting]
            min(waiting, key=lambda each: each._waiting_since_s, default=self).hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._begun:  # it may end between its handshake and its begin
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._begun:  # came together with the end of the handshake
            self._early += data
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None:
            self._wait_for_a_request()

    @property
    def is_waiting(self) -> bool:
        """Whether there is no whole request here: its head or its body has yet to arrive."""
        begun = self.cycle is not None and not self.cycle.response_complete
        return self._deadline is not None or (begun and self.cycle.more_body)

    def hang_up(self) -> None:
        self._stop_waiting()
        self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._deadline is None:
            self._wait_for_a_request(KEEP_ALIVE_S)

    def _wait_for_a_request(self, limit_s: float = HEAD_S) -> None:
        self._waiting_since_s = self.loop.time()
        self._deadline = self.loop.call_later(limit_s, self.hang_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Handshake(asyncio.Protocol):
    """A connection until it speaks TLS. Those that wait are bounded; the oldest makes room."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        waiting: dict[_Handshake, None],
        handshakes: TaskOwner,
    ) -> None:
        self._tls, self._make, self._waiting = tls, make, waiting
        self._handshakes: TaskOwner = handshakes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "it listens for streams"
        self._transport = transport
        transport.pause_reading()  # what comes belongs to the handshake
        if len(self._waiting) >= CONNECTIONS_MAX:
            next(iter(self._waiting)).hang_up()
        self._waiting[self] = None
        self._handshakes.create_task(self._shake_hands(transport))

    def hang_up(self) -> None:
        self._waiting.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        inner = self._make()
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport, inner, self._tls, server_side=True, ssl_handshake_timeout=HEAD_S
            )
        except OSError:  # no TLS, or not in time
            transport.abort()
            return
        finally:
            self._waiting.pop(self, None)
        if encrypted is None:
            transport.abort()
            return
        inner.connection_made(encrypted)


class _Loop(asyncio.SelectorEventLoop):
    """Has connections shake hands before the protocol of a server gets them."""

    def __init__(self, tls: ssl.SSLContext | None, handshakes: TaskOwner) -> None:
        super().__init__()
        self._tls, self._handshakes = tls, handshakes

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        tls, waiting = self._tls, dict[_Handshake, None]()
        if tls is None:
            return await super().create_server(protocol_factory, *args, **options)
        return await super().create_server(
            lambda: _Handshake(tls, protocol_factory, waiting, self._handshakes), *args, **options
        )


def uvicorn_options() -> dict[str, Any]:
    """How uvicorn serves the page."""
    return {
        "http": _Connection,
        "ws": "none",
        "h11_max_incomplete_event_size": HEAD_BYTES_MAX,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "server_header": False,
        "proxy_headers": False,  # nothing here goes by what a proxy says of others
        "log_config": None,
        "access_log": False,
        "lifespan": "off",
        "timeout_graceful_shutdown": 1,
    }


class _Server(uvicorn.Server):
    """Looks around once a second, not ten times as uvicorn does, and ends as soon as it is asked to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._asked: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        self._asked = (loop, asked)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await asked.wait()

    def ask_to_end(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._asked is not None:
            loop, asked = self._asked
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(asked.set)


class ProbeServer:
    """Serves one application from one thread, from `start` to `stop`."""

    def __init__(self, app: Starlette, *, host: str, port: int, tls: CertificateFiles | None = None) -> None:
        self._tls = None if tls is None else tls.context()
        self._host = host
        self._socket = _bind(host, port)
        config = uvicorn.Config(app, **uvicorn_options())
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name="ringrift-probes", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; called from a worker thread, since it waits up to a few seconds."""
        self._server.ask_to_end()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._socket.close()

    def _serve(self) -> None:
        # An owner and no group: a handshake that fails must not end the server for all others.
        handshakes = TaskOwner("probe server")
        with asyncio.Runner(loop_factory=lambda: _Loop(self._tls, handshakes)) as runner:
            runner.run(self._serve_until_asked(handshakes))

    async def _serve_until_asked(self, handshakes: TaskOwner) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await handshakes.stop(STOP_S / 2)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the health probes cannot listen on {host}:{port}: {error.strerror}; "
            "set RINGRIFT_HEALTH_PORT to a free port, or to 0 for any"
        ) from None
    return listener


# --- the daemon ---------------------------------------------------------------------------------------


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
