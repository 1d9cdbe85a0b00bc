"""Raw bytes to the page's server: the real protocol, guard and endpoints, without a socket.

Whatever comes in, the answer is never a 500, the endpoints are reached only with the key, and what one
connection holds is bounded.
"""

import asyncio
import logging

import uvicorn
from uvicorn.server import ServerState

from ringrift.runtime import SystemRuntime
from ringrift.testing.sample_run import SampleRun
from ringrift.web import server
from ringrift.web.access import AccessKeys
from ringrift.web.endpoints import Probes
from ringrift.web.snapshot import ProbeSnapshot, SnapshotBoard

TOKEN = "k" * 64
HOST = b"Host: 127.0.0.1:8790\r\n"
KEY = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
RUNTIME = SystemRuntime(seed=1)  # a process has one, for as long as it lives
LOOK_S = 0.02  # longer than any answer but that of the stream, which has no end


def _post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"".join(headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


SEEDS = [
    b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /livez HTTP/1.0\r\n\r\n",
    b"GET /page/main.js HTTP/1.1\r\n" + HOST + b"Range: bytes=0-9\r\nIf-None-Match: x\r\n\r\n",
    b"GET /page/..%2f..%2fendpoints.py HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    b"GET /status HTTP/1.1\r\n" + HOST + KEY + b"\r\nGET /session HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /events/stream?mark=a.1 HTTP/1.1\r\n" + HOST + b"Last-Event-ID: x.2\r\n\r\n",
    b"GET /page/%00%ff HTTP/1.1\r\n" + HOST + b"\r\n",
    b"OPTIONS /event HTTP/1.1\r\n" + HOST + b"Origin: http://evil.example\r\n\r\n",
    b"GET /events/stream HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    _post(b"/event", b'{"event_type":"HOST_ONLINE","payload":{"node_id":"a"}}', KEY),
    _post(b"/event", b'{"event_type":"leader_elected","payload":{}}', KEY),
    _post(b"/event", b'{"event_type":"HOST_ONLINE"}', b"Origin: http://evil.example\r\n", KEY),
    _post(b"/pause", b'{"config":"square8_2p","reason":"x"}', KEY, b"traceparent: 00-1-2-3\r\n"),
    _post(b"/link", b"", KEY),
    _post(b"/session", b'{"code":"abc"}'),
    b"POST /pause HTTP/1.1\r\n"
    + HOST
    + JSON
    + KEY
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
]


logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


class _Actions:
    """What was done; only whoever has the key may get here."""

    def __init__(self) -> None:
        self.done = 0

    async def publish(self, event: object, headers: object) -> str:
        self.done += 1
        return "id"

    async def pause(self, request: object) -> None:
        self.done += 1

    async def resume(self, request: object) -> None:
        self.done += 1


class _Line(asyncio.Transport):
    """A connection in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed = bytearray(), False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8790)}.get(name, default)

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def run(data: bytes) -> None:
    """One connection that sends *data* and ends."""
    asyncio.run(_served(data))


async def _served(data: bytes) -> None:
    actions, runtime, board = _Actions(), RUNTIME, SnapshotBoard()
    fields = {
        "node_id": "box",
        "alive": True,
        "ready": True,
        "reason": "",
        "uptime_s": 1.0,
        "health_score": 1.0,
    }
    board.show(ProbeSnapshot(taken_s=runtime.monotonic_s(), run=SampleRun().status(), **fields))
    probes = Probes(board, actions, runtime, keys=AccessKeys(TOKEN, runtime))
    config = uvicorn.Config(probes.app(), **server.uvicorn_options())
    config.load()
    state, line = ServerState(), _Line()
    connection = server._Connection(config, state, {}, _loop=asyncio.get_running_loop())
    connection.connection_made(line)
    if data:  # a transport hands over nothing else
        connection.data_received(data)
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=LOOK_S)
    connection.connection_lost(None)
    probes.stream.close()
    if state.tasks:
        await asyncio.wait(state.tasks)  # all of them end when whoever asked is gone
    assert b"HTTP/1.1 500" not in line.sent, bytes(line.sent[:500])
    assert not actions.done or TOKEN.encode() in data, "something was done without the key"
    assert TOKEN.encode() not in line.sent or TOKEN.encode() in data, "the token got out"
