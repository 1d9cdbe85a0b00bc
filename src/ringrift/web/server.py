"""The HTTP server of the probes: one thread with a loop of its own.

What strangers can hold is bounded: how many connections there are, how large the head of a request is, and
how long it may take to arrive. When all connections are taken, the one that has waited longest without a
whole request makes room for a new one, so that idle ones never keep anybody out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ringrift.errors import ConfigError
from ringrift.tls import CertificateFiles

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
        self, tls: ssl.SSLContext, make: Callable[[], asyncio.BaseProtocol], waiting: dict[_Handshake, None]
    ) -> None:
        self._tls, self._make, self._waiting = tls, make, waiting
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "it listens for streams"
        self._transport = transport
        transport.pause_reading()  # what comes belongs to the handshake
        if len(self._waiting) >= CONNECTIONS_MAX:
            next(iter(self._waiting)).hang_up()
        self._waiting[self] = None
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

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

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        tls, waiting = self._tls, dict[_Handshake, None]()
        if tls is None:
            return await super().create_server(protocol_factory, *args, **options)
        return await super().create_server(
            lambda: _Handshake(tls, protocol_factory, waiting), *args, **options
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
        with asyncio.Runner(loop_factory=lambda: _Loop(self._tls)) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))


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
