"""The HTTP server of the probes: one thread with a loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from ringrift.errors import ConfigError

STOP_S = 5.0


class ProbeServer:
    """Serves one application from one thread, from `start` to `stop`."""

    def __init__(self, app: Starlette, *, host: str, port: int) -> None:
        self._host = host
        self._socket = _bind(host, port)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="ringrift-probes", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; called from a worker thread, since it waits up to a few seconds."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._socket.close()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
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
