"""`/events/stream`: snapshots as server-sent events, for as long as somebody watches.

A watcher that comes back with the mark of what it has seen gets what changed since; one that is slow misses
snapshots, never parts. At most `WATCHERS_MAX` watch at a time, some of them only with the key, so that nobody
else can shut the owner out; one that takes nothing is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Send

from ringrift.health.run_status import ConfigStatus, RunStatus
from ringrift.runtime import Runtime
from ringrift.web.access import has_key
from ringrift.web.snapshot import ProbeSnapshot, SnapshotBoard, liveness, readiness

# A snapshot cut into parts, so that a watcher is sent only what changed since the part it saw last.
#
# Every part carries the number of the snapshot in which it last changed. A watcher names the last number it
# has; whatever changed later is all it needs, however long it was away. Nothing is queued for anybody.


GONE = b"null"
PLOTTED = ("curve", "losses")  # long and seldom new: parts of their own

_encoder = msgspec.json.Encoder(enc_hook=str)


class Sections:
    """The parts of the newest snapshot. Belongs to one thread."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._number = 0
        self._parts: dict[str, tuple[int, bytes]] = {}

    @property
    def mark(self) -> str:
        """Names the newest snapshot; of no meaning to a later process."""
        return f"{self._boot}.{self._number}"

    def take(self, snapshot: ProbeSnapshot) -> None:
        """Note which parts are new. A part that is gone is told as null."""
        fresh = dict(_parts(snapshot))
        stale = {name: GONE for name, (_, body) in self._parts.items() if name not in fresh and body != GONE}
        changed = {
            name: body
            for name, body in {**fresh, **stale}.items()
            if name not in self._parts or self._parts[name][1] != body
        }
        if changed:
            self._number += 1
            self._parts |= {name: (self._number, body) for name, body in changed.items()}

    def since(self, mark: str) -> tuple[bool, dict[str, msgspec.Raw]]:
        """Return whether this is everything, and the parts that changed after *mark*."""
        boot, _, digits = mark.rpartition(".")
        known = boot == self._boot and digits.isascii() and digits.isdigit() and len(digits) < 16
        if not known or int(digits) > self._number:
            return True, {name: msgspec.Raw(body) for name, (_, body) in self._parts.items() if body != GONE}
        seen = int(digits)
        return False, {name: msgspec.Raw(body) for name, (at, body) in self._parts.items() if at > seen}


def _parts(snapshot: ProbeSnapshot) -> Iterator[tuple[str, bytes]]:
    yield "daemons", _encoder.encode(snapshot.daemons)
    yield "events", _encoder.encode(snapshot.events)
    yield "node", _encoder.encode({"node": snapshot.node_id, "version": snapshot.version})
    run = snapshot.run
    if run is None:
        return
    yield "run", _encoder.encode(_head(run))
    yield "decisions", _encoder.encode(run.decisions)
    yield "findings", _encoder.encode(run.findings)
    yield "queue", _encoder.encode(run.queue)
    for key, config in run.configs.items():
        yield f"config/{key}", _encoder.encode(_numbers(config))
        for plotted in PLOTTED:
            yield f"{plotted}/{key}", _encoder.encode(getattr(config, plotted))


def _head(run: RunStatus) -> Mapping[str, Any]:
    return {name: getattr(run, name) for name in ("at_s", "started_s", "node", "state", "workers", "paused")}


def _numbers(config: ConfigStatus) -> Mapping[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__ if name not in PLOTTED}


WATCHERS_MAX = 32
WATCHERS_WITH_KEY = 8  # places that only the key opens
BEAT_S = 5.0
SEND_S_MAX = 20.0
RETRY_MS = 1000


class LiveStream:
    """Serves all watchers of one board, on the server's loop."""

    def __init__(self, board: SnapshotBoard, runtime: Runtime) -> None:
        self._board, self._runtime = board, runtime
        self._sections = Sections(runtime.new_id())
        self._watchers = 0
        self._closing = False

    @property
    def watchers(self) -> int:
        return self._watchers

    async def answer(self, request: Request) -> Response:
        watchers_max = WATCHERS_MAX - (0 if has_key(request.scope) else WATCHERS_WITH_KEY)
        if self._watchers >= watchers_max:
            why = f"{watchers_max} pages watch this run already; close one"
            return JSONResponse({"error": why}, status_code=503, headers={"retry-after": "5"})
        # A browser that reconnects by itself sends the header; the page, which starts anew, the parameter.
        mark = request.headers.get("last-event-id") or request.query_params.get("mark", "")
        return _EventStream(
            self._watch(mark),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    def close(self) -> None:
        """Send everybody home; from any thread."""
        self._closing = True
        self._board.wake()

    async def _watch(self, mark: str) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        self._watchers += 1
        leave = self._board.listen(waker(asyncio.get_running_loop(), changed))
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._closing:
                changed.clear()
                for message in self._messages(mark):
                    yield message
                mark = self._sections.mark
                await set_within(changed, BEAT_S)
            yield _message("bye", {"now_s": self._runtime.now_s()})
        finally:
            leave()
            self._watchers -= 1

    def _messages(self, mark: str) -> list[bytes]:
        snapshot, now_s = self._board.latest(), self._runtime.monotonic_s()
        if snapshot is not None:
            self._sections.take(snapshot)
        alive, ready = liveness(snapshot, now_s=now_s), readiness(snapshot, now_s=now_s)
        full, parts = self._sections.since(mark)
        beat = {
            "now_s": self._runtime.now_s(),
            "alive": alive.yes,
            "ready": ready.yes,
            "reason": alive.reason or ready.reason,
        }
        if not full and not parts:
            return [_message("beat", beat)]
        return [_message("picture", {**beat, "full": full, "parts": parts}, mark=self._sections.mark)]


class _EventStream(StreamingResponse):
    """Gives up on a reader that takes nothing."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_S_MAX):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return


def waker(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> Callable[[], None]:
    """What a board calls to set *changed* on *loop*."""

    def wake() -> None:
        # The watcher leaves the board before its loop ends, except when the whole thread is torn down.
        if not loop.is_closed():
            loop.call_soon_threadsafe(changed.set)

    return wake


async def set_within(changed: asyncio.Event, seconds: float) -> None:
    """Wait until *changed* is set, for so long at most."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return


def _message(kind: str, body: Any, *, mark: str | None = None) -> bytes:
    head = b"" if mark is None else b"id: " + mark.encode() + b"\n"
    # JSON has no bare line break, so one data line holds it.
    return head + b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(body) + b"\n\n"
