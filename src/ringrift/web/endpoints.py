"""What the server answers, read off the latest picture: the probes, the live page, and events taken in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ringrift.errors import RingRiftError, Unavailable
from ringrift.runtime import Runtime
from ringrift.web import metrics
from ringrift.web.guard import Guard
from ringrift.web.live_stream import LiveStream
from ringrift.web.snapshot import ProbeAnswer, SnapshotBoard, liveness, readiness

EVENT_BODY_BYTES_MAX = 1_000_000
PAGE = Path(__file__).parent / "page"
# A browser asks each time whether a file changed, so that an upgrade shows at once.
ASK_EACH_TIME = {"cache-control": "no-cache"}


class PostedEvent(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /event`."""

    event_type: str
    payload: dict[str, Any] = {}
    source: str = "http"


# Takes the event and the request's headers, which may carry a trace; returns the event's id.
Publish = Callable[[PostedEvent, Mapping[str, str]], Awaitable[str]]


class Probes:
    """One method per address."""

    def __init__(self, board: SnapshotBoard, publish: Publish, runtime: Runtime, *, host: str = "") -> None:
        self._board, self._publish, self._runtime = board, publish, runtime
        self._names = tuple(name for name in (host, runtime.hostname) if name)
        self.stream = LiveStream(board, runtime)

    def app(self) -> Starlette:
        return Starlette(
            middleware=[Middleware(Guard, names=self._names)],
            routes=[
                Route("/", self.page),
                Mount("/page", _PageFiles(directory=PAGE)),
                Route("/events/stream", self.stream.answer),
                *(Route(path, self.health) for path in ("/health", "/livez")),
                *(Route(path, self.ready) for path in ("/ready", "/readyz")),
                Route("/status", self.status),
                Route("/metrics", self.metrics),
                Route("/event", self.event, methods=["POST"]),
            ],
        )

    async def page(self, _: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=ASK_EACH_TIME)

    async def health(self, _: Request) -> Response:
        return self._answer("alive", liveness(self._board.latest(), now_s=self._runtime.monotonic_s()))

    async def ready(self, _: Request) -> Response:
        return self._answer("ready", readiness(self._board.latest(), now_s=self._runtime.monotonic_s()))

    async def status(self, _: Request) -> Response:
        latest = self._board.latest()
        body = {} if latest is None else dict(latest.status)
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        text, content_type = metrics.render(
            self._board.latest(),
            now_s=self._runtime.monotonic_s(),
            accept=request.headers.get("accept", ""),
        )
        return Response(text, headers={"content-type": content_type})

    async def event(self, request: Request) -> Response:
        """Take an event from another program on this machine."""
        # A page in a browser can't send this type across origins without asking first.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            return _refusal(415, "send the event as application/json")
        body = await _bounded_body(request)
        if body is None:
            return _refusal(413, f"an event may have at most {EVENT_BODY_BYTES_MAX} bytes")
        try:
            posted = msgspec.json.decode(body, type=PostedEvent)
            event_id = await self._publish(posted, dict(request.headers))
        except msgspec.DecodeError as error:
            return _refusal(400, f"not an event: {error}")
        except Unavailable as error:
            return _refusal(503, str(error))
        except (RingRiftError, ValueError) as error:
            return _refusal(422, str(error))
        return JSONResponse({"event_id": event_id}, status_code=202)

    def _answer(self, key: str, verdict: ProbeAnswer) -> JSONResponse:
        latest = self._board.latest()
        body = {
            key: verdict.yes,
            "reason": verdict.reason,
            "timestamp": self._runtime.now_s(),
            "node_id": self._runtime.hostname if latest is None else latest.node_id,
        }
        return JSONResponse(body, status_code=200 if verdict.yes else 503)


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(ASK_EACH_TIME)
        return answer


def _refusal(code: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status_code=code)


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > EVENT_BODY_BYTES_MAX:
            return None
    return bytes(body)
