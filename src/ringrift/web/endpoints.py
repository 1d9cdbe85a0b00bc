"""What the server answers, read off the latest snapshot: the probes, the live page; and what it takes in.

Who may ask for what is decided before, by the guard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.events.catalog.names import delivered_as
from ringrift.events.catalog.table import CATALOG
from ringrift.runtime import Runtime
from ringrift.web import metrics
from ringrift.web.access import AccessKeys
from ringrift.web.guard import Guard, has_key, may_read
from ringrift.web.live_stream import LiveStream, set_within, waker
from ringrift.web.snapshot import FRESH_S, ProbeAnswer, ProbeSnapshot, SnapshotBoard, liveness, readiness

BODY_BYTES_MAX = 1_000_000
PICTURE_S_MAX = 0.5  # a probe waits no longer for a new snapshot: it must answer while the loop is blocked
_TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
PAGE = Path(__file__).parent / "page"
# A browser asks each time whether a file changed, so that an upgrade shows at once.
ASK_EACH_TIME = {"cache-control": "no-cache"}


T = TypeVar("T")

BODY_S_MAX = 20.0
DEPTH_MAX = 32
# What another program may report unless the settings say otherwise: what its jobs did, and that a host is up.
# None of them makes, moves or deletes anything by itself; the loop looks at its own store.
REPORTED_EVENTS = (
    "HOST_ONLINE",
    "NEW_GAMES_AVAILABLE",
    "NPZ_EXPORT_COMPLETE",
    "SELFPLAY_COMPLETE",
    "TRAINING_COMPLETED",
    "TRAINING_FAILED",
    "TRAINING_PROGRESS",
    "TRAINING_STARTED",
)
# Never by HTTP, whatever the settings say: who leads, what is promoted or taken back, what is deleted, what
# daemons do. Our own code says these, after it did them.
OWN_CATEGORIES = frozenset(
    {"leadership", "promotion", "daemon", "coordinator", "disk", "event_system", "model", "provisioning"}
)
OWN_EVENTS = frozenset(
    {
        "NODE_RETIRED",
        "NODE_TERMINATED",
        "P2P_RESTART_TRIGGERED",
        "REGRESSION_CRITICAL",
        "TRAINING_ROLLBACK_COMPLETED",
        "TRAINING_ROLLBACK_NEEDED",
    }
)


class PostedEvent(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /event`."""

    event_type: str
    payload: dict[str, Any] = {}
    source: str = "http"


class PostedCode(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /session`: the code of a link."""

    code: str


class PostedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /pause` and `POST /resume`; without a config, the whole run."""

    config: str | None = None
    reason: str = ""


class Actions(Protocol):
    """What a request with the key may do to the run."""

    async def publish(self, event: PostedEvent, headers: Mapping[str, str]) -> str:
        """Publish, continuing the trace that the headers carry; returns the event's id."""
        ...

    async def pause(self, request: PostedRequest) -> None: ...

    async def resume(self, request: PostedRequest) -> None: ...


def events_by_http(named: tuple[str, ...] | None) -> frozenset[str]:
    """The events that may come by HTTP; `ConfigError` for one that no setting can allow."""
    wanted = REPORTED_EVENTS if named is None else tuple(name.upper() for name in named)
    for name in wanted:
        if name not in CATALOG:
            raise ConfigError(f"http_events names {name}; the catalog has no such event")
        if name in OWN_EVENTS or CATALOG[name].category in OWN_CATEGORIES:
            raise ConfigError(f"http_events names {name}, which never comes by HTTP")
    return frozenset(wanted)


class Probes:
    """One method per address."""

    def __init__(
        self,
        board: SnapshotBoard,
        actions: Actions,
        runtime: Runtime,
        *,
        keys: AccessKeys,
        events: frozenset[str] | None = None,
    ) -> None:
        self._board, self._actions, self._runtime, self._keys = board, actions, runtime, keys
        self._events = events_by_http(None) if events is None else events
        self.stream = LiveStream(board, runtime)

    def app(self, *, names: tuple[str, ...] = (), open_to_read: bool = True) -> Starlette:
        guard = Middleware(
            Guard, keys=self._keys, names=(*names, self._runtime.hostname), open_to_read=open_to_read
        )
        return Starlette(
            middleware=[guard],
            routes=[
                Route("/", self.page),
                Mount("/page", _PageFiles(directory=PAGE)),
                Route("/events/stream", self.stream.answer),
                *(Route(path, self.health) for path in ("/health", "/livez")),
                *(Route(path, self.ready) for path in ("/ready", "/readyz")),
                Route("/status", self.status),
                Route("/metrics", self.metrics),
                Route("/session", self.rights),
                Route("/session", self.enter, methods=["POST"]),
                Route("/link", self.link, methods=["POST"]),
                Route("/event", self.event, methods=["POST"]),
                Route("/pause", self.pause, methods=["POST"]),
                Route("/resume", self.resume, methods=["POST"]),
            ],
        )

    async def page(self, _: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=ASK_EACH_TIME)

    async def health(self, request: Request) -> Response:
        latest = await self._fresh()
        return self._answer(request, "alive", liveness(latest, now_s=self._runtime.monotonic_s()))

    async def ready(self, request: Request) -> Response:
        latest = await self._fresh()
        return self._answer(request, "ready", readiness(latest, now_s=self._runtime.monotonic_s()))

    async def status(self, _: Request) -> Response:
        latest = await self._fresh()
        body = {} if latest is None else dict(latest.status)
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        text, content_type = metrics.render(
            await self._fresh(),
            now_s=self._runtime.monotonic_s(),
            accept=request.headers.get("accept", ""),
        )
        return Response(text, headers={"content-type": content_type})

    async def _fresh(self) -> ProbeSnapshot | None:
        """The latest snapshot; a new one if the control loop takes it in time."""
        board, latest = self._board, self._board.latest()
        if board.ask is None or (
            latest is not None and self._runtime.monotonic_s() - latest.taken_s <= FRESH_S
        ):
            return latest
        news = asyncio.Event()
        leave = board.listen(waker(asyncio.get_running_loop(), news))
        try:
            await set_within(news, PICTURE_S_MAX)
        finally:
            leave()
        return board.latest()

    async def rights(self, request: Request) -> Response:
        """What whoever asks may do."""
        return JSONResponse({"may_read": may_read(request.scope), "may_act": has_key(request.scope)})

    async def enter(self, request: Request) -> Response:
        """Exchange the code of a link for a session."""
        posted = await _read(request, PostedCode)
        if isinstance(posted, Response):
            return posted
        session = self._keys.exchange(posted.code)
        if session is None:
            return _refusal(401, "this link was used before, or is too old; `ringrift link` prints a new one")
        return JSONResponse({"session": session})

    async def link(self, _: Request) -> Response:
        return JSONResponse({"code": self._keys.new_code()})

    async def event(self, request: Request) -> Response:
        """Take an event from another program."""
        posted = await _read(request, PostedEvent)
        if isinstance(posted, Response):
            return posted
        # By every name under which it may arrive: an alias with a payload can mean another event.
        refused = [name for name in delivered_as(posted.event_type) if name not in self._events]
        if refused:
            allowed = ", ".join(sorted(self._events))
            return _refusal(403, f"{refused[0][:80]} does not come by HTTP; these do: {allowed}")
        return await _done(self._published(posted, request))

    async def _published(self, posted: PostedEvent, request: Request) -> Response:
        event_id = await self._actions.publish(posted, dict(request.headers))
        return JSONResponse({"event_id": event_id}, status_code=202)

    async def pause(self, request: Request) -> Response:
        return await self._act(request, self._actions.pause)

    async def resume(self, request: Request) -> Response:
        return await self._act(request, self._actions.resume)

    async def _act(self, request: Request, act: Callable[[PostedRequest], Awaitable[None]]) -> Response:
        posted = await _read(request, PostedRequest)
        if isinstance(posted, Response):
            return posted

        async def acted() -> Response:
            await act(posted)
            return Response(status_code=204)

        return await _done(acted())

    def _answer(self, request: Request, key: str, verdict: ProbeAnswer) -> JSONResponse:
        """Yes or no for everybody; the reason for those who may read."""
        code = 200 if verdict.yes else 503
        if not may_read(request.scope):
            return JSONResponse({key: verdict.yes}, status_code=code)
        latest = self._board.latest()
        body = {
            key: verdict.yes,
            "reason": verdict.reason,
            "timestamp": self._runtime.now_s(),
            "node_id": self._runtime.hostname if latest is None else latest.node_id,
        }
        return JSONResponse(body, status_code=code)


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(ASK_EACH_TIME)
        return answer


def _refusal(code: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status_code=code)


async def _read(request: Request, kind: type[T]) -> T | Response:
    """The body as a *kind*, or the refusal."""
    # A page in a browser can't send this type across origins without asking first.
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return _refusal(415, "send the body as application/json")
    try:
        async with asyncio.timeout(BODY_S_MAX):
            body = await _bounded_body(request)
    except TimeoutError:
        return _refusal(408, f"the body did not arrive within {BODY_S_MAX:g} s")
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it
    if body is None:
        return _refusal(413, f"a body may have at most {BODY_BYTES_MAX} bytes")
    if _depth(body) > DEPTH_MAX:
        return _refusal(400, f"the body is nested more than {DEPTH_MAX} deep")
    try:
        return decode_as(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _refusal(400, f"the body is not what this takes: {error}")


async def _done(action: Awaitable[Response]) -> Response:
    try:
        return await action
    except Unavailable as error:
        return _refusal(503, str(error))
    except (RingRiftError, ValueError) as error:
        return _refusal(422, str(error))


async def _bounded_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return None
    return bytes(body)


def _depth(body: bytes) -> int:
    """How deep the body is nested; asked first, because a decoder recurses."""
    deepest = depth = 0
    for found in _TEXT_OR_BRACKET.finditer(body):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest
