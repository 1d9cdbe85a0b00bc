"""What the server answers, read off the latest snapshot: the probes, the live page; and what it takes in.

Who may ask for what is decided before, by the guard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
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
from ringrift.health.run_status import ConfigStatus, RunStatus, WorkerStatus
from ringrift.learning.plan.stages import LEVERS
from ringrift.runtime import Runtime
from ringrift.web.access import AccessKeys, Guard, has_key, may_read
from ringrift.web.live_stream import LiveStream, set_within, waker
from ringrift.web.snapshot import FRESH_S, ProbeAnswer, ProbeSnapshot, SnapshotBoard, liveness, readiness

# --- metrics ------------------------------------------------------------------------------------------
#
# The latest snapshot for Prometheus and its like, in OpenMetrics form for whoever asks for that.


# What the loop is doing, as metrics: one series per config, and the queue.


Number = Callable[[ConfigStatus], float | None]

GAUGES: tuple[tuple[str, str, Number], ...] = (
    ("ringrift_games", "Games that agree with the rules", lambda c: c.games),
    ("ringrift_games_unchecked", "Games that wait for their check", lambda c: c.games_unchecked),
    ("ringrift_games_per_second", "Games played a second", lambda c: c.games_per_s),
    ("ringrift_rows", "Rows of the games", lambda c: c.rows),
    ("ringrift_trained_rows", "Rows that the newest model was offered", lambda c: c.trained_rows),
    ("ringrift_rating", "Rating of the champion", lambda c: c.rating),
    ("ringrift_rating_low", "Lower end of its 95 % interval", lambda c: _end(c, 0)),
    ("ringrift_rating_high", "Upper end of its 95 % interval", lambda c: _end(c, 1)),
    ("ringrift_train_bucket", "Sample-steps that new rows have earned", lambda c: c.bucket),
    ("ringrift_selfplay_share", "Share of self-play", lambda c: c.share),
    ("ringrift_jobs_running", "Jobs under way", lambda c: len(c.running)),
    ("ringrift_stages_blocked", "Stages that wait after failures", lambda c: len(c.blocked)),
    ("ringrift_paused", "1 while somebody has paused it", lambda c: c.paused is not None),
)
COUNTERS: tuple[tuple[str, str, Number], ...] = (
    ("ringrift_games_refused", "Games that do not agree with the rules", lambda c: c.games_refused),
    ("ringrift_sample_steps", "Rows seen in training, repeats included", lambda c: c.sample_steps),
    ("ringrift_promotions", "Champions that were made", lambda c: c.promotions),
    ("ringrift_rejections", "Candidates that were refused", lambda c: c.rejections),
    ("ringrift_rollbacks", "Promotions that were taken back", lambda c: c.rollbacks),
    ("ringrift_cpu_seconds", "Processor time of all jobs", lambda c: c.cost.cpu_s),
    ("ringrift_gpu_seconds", "GPU time of all jobs", lambda c: c.cost.gpu_s),
    ("ringrift_money", "What the nodes cost, where each has a price", lambda c: c.cost.money),
)


WORKER_NUMBERS: tuple[tuple[str, str, Callable[[WorkerStatus], float]], ...] = (
    ("ringrift_worker_games", "Games that a worker brought", lambda w: w.games),
    ("ringrift_worker_games_refused", "Games of it that broke the rules", lambda w: w.refused),
    ("ringrift_worker_comparisons", "Times its games were searched again by another", lambda w: w.compared),
    ("ringrift_worker_faults", "Comparisons that found it wrong", lambda w: w.faults),
    ("ringrift_worker_disputes", "Comparisons that nobody could decide", lambda w: w.disputed),
)


def run_metrics(run: RunStatus) -> Iterator[Metric]:
    """A config has no sample of what it has no value for."""
    yield GaugeMetricFamily("ringrift_workers", "Jobs that may run at a time", value=run.workers)
    if run.starting is not None:
        about = "Share of the workers' time that jobs take to start"
        yield GaugeMetricFamily("ringrift_start_share", about, value=run.starting.share)
        about = "Median time of recent jobs to their first game or step"
        yield GaugeMetricFamily("ringrift_start_seconds", about, value=run.starting.median_s)
    for kind, rows in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, about, number in rows:
            family = kind(name, about, labels=["config"])
            for config, status in run.configs.items():
                value = number(status)
                if value is not None:
                    family.add_metric([config], value)
            yield family
    yield _stopped_stages(run)
    yield from _worker_metrics(run)
    queue = GaugeMetricFamily("ringrift_queue_items", "Items of work", labels=["kind", "state"])
    for kind_of_work, states in run.queue.items():
        for state, items in states.items():
            queue.add_metric([kind_of_work, state], items)
    yield queue


def _stopped_stages(run: RunStatus) -> Metric:
    """One series per config and daemon of a stage, also of those that plan: an alert needs the end, too."""
    about = "1 while the daemon is stopped, so that its stage of the loop is not planned"
    family = GaugeMetricFamily("ringrift_stage_stopped", about, labels=["config", "daemon"])
    for config, status in run.configs.items():
        for daemon in sorted(LEVERS):
            family.add_metric([config, daemon], daemon in status.stopped)
    return family


def _worker_metrics(run: RunStatus) -> Iterator[Metric]:
    for name, about, number in WORKER_NUMBERS:
        family = CounterMetricFamily(name, about, labels=["worker"])
        for worker in run.worker_statistics:
            family.add_metric([worker.name], number(worker))
        yield family
    aside = GaugeMetricFamily("ringrift_worker_set_aside", "Whether it gets no work", labels=["worker"])
    for worker in run.worker_statistics:
        aside.add_metric([worker.name], worker.set_aside is not None)
    yield aside


def _end(config: ConfigStatus, place: int) -> float | None:
    return None if config.rating_interval is None else config.rating_interval[place]


_OPENMETRICS = re.compile(r"application/openmetrics-text(?:\s*;\s*version=(0\.0\.1|1\.0\.0))?\s*(?:[;,]|$)")


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: ProbeSnapshot | None, *, now_s: float) -> None:
        self._snapshot, self._now_s = snapshot, now_s

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield GaugeMetricFamily(
            "ringrift_up", "1 while the control process reports", value=0.0 if snapshot is None else 1.0
        )
        if snapshot is None:
            return
        yield GaugeMetricFamily(
            "ringrift_report_age_seconds",
            "Age of the control loop's latest report",
            value=self._now_s - snapshot.taken_s,
        )
        daemons = GaugeMetricFamily("daemon_count", "Daemons by state", labels=["state"])
        for state, count in sorted(snapshot.daemon_counts.items()):
            daemons.add_metric([state], count)
        yield daemons
        yield GaugeMetricFamily(
            "daemon_health_score", "Share of daemons that are well", value=snapshot.health_score
        )
        yield GaugeMetricFamily(
            "daemon_uptime_seconds", "Uptime of the control process", value=snapshot.uptime_s
        )
        events = CounterMetricFamily("ringrift_events_routed", "Events by type", labels=["event"])
        for event, count in sorted(snapshot.events_routed.items()):
            events.add_metric([event], count)
        yield events
        if snapshot.run is not None:
            yield from run_metrics(snapshot.run)


def render(snapshot: ProbeSnapshot | None, *, now_s: float, accept: str) -> tuple[bytes, str]:
    """Return the exposition of *snapshot* and its content type, by the reader's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, now_s=now_s))
    # Only what exists is handed on: the library fails on odd versions, and a header is anybody's text.
    asked = _OPENMETRICS.search(accept)
    form = "" if asked is None else f"application/openmetrics-text; version={asked[1] or '1.0.0'}"
    encode, content_type = choose_encoder(form)
    return encode(registry), content_type


# --- the answers --------------------------------------------------------------------------------------


BODY_BYTES_MAX = 1_000_000
SNAPSHOT_S_MAX = 0.5  # a probe waits no longer for a new snapshot: it must answer while the loop is blocked
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
        text, content_type = render(
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
        changed = asyncio.Event()
        leave = board.listen(waker(asyncio.get_running_loop(), changed))
        try:
            await set_within(changed, SNAPSHOT_S_MAX)
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
