"""What a job says on stdout: one JSON object a line, never silent for longer than its heartbeat.

A `heartbeat` line says that the process lives; its `idle_s` says for how long it has done nothing that it
would report, so that a reader can tell a slow job from a stuck one. If nobody reads any more, the job is
asked to stop instead of writing on into nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec
import structlog

from ringrift.errors import storable_text
from ringrift.jobs.stopping import StopRequest
from ringrift.network.gpu_use import gpu_use
from ringrift.runtime import Runtime

PROTOCOL = 1
PROGRESS_EVERY_S = 0.5
_TEXT_CHARS_MAX = 100_000

log = structlog.get_logger()


def cpu_seconds() -> float:
    """Processor time of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(slots=True)
class _Stage:
    name: str
    started_s: float
    done_at_start: int
    done: int
    total: int | None


class Reporter:
    """Writes the lines of one job; may be called from several threads."""

    def __init__(
        self, kind: str, *, out: TextIO, runtime: Runtime, stop: StopRequest, heartbeat_s: float
    ) -> None:
        self._kind, self._out, self._runtime, self._stop = kind, out, runtime, stop
        self._heartbeat_s = heartbeat_s
        self._started_s = self._said_s = self._reported_s = runtime.monotonic_s()
        self._stage = _Stage("starting", self._started_s, 0, 0, None)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Reporter:
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beats.join()

    def say(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write one line, flushed."""
        now_s = self._runtime.monotonic_s()
        line = {
            "event": event,
            "kind": self._kind,
            "elapsed_s": round(now_s - self._started_s, 3),
            "cpu_s": round(cpu_seconds(), 3),
            "gpu_s": round(gpu_use().seconds(), 3),
            **fields,
        }
        text = _in_json(line)
        with self._lock:
            self._said_s = now_s
            try:
                self._out.write(text + "\n")
                self._out.flush()
            except (BrokenPipeError, ValueError):
                self._stop.request("nobody reads the progress any more")

    def stage(self, name: str, *, total: int | None = None, done: int = 0) -> None:
        """Begin the next part of the job; rates count from here."""
        self._stage = _Stage(name, self._runtime.monotonic_s(), done, done, total)
        self._say_progress({})

    def progress(self, done: int, *, total: int | None = None, **fields: Any) -> None:
        """Say how far the stage is; calls in quick succession are dropped, except the last of a stage."""
        stage = self._stage
        stage.done = done
        if total is not None:
            stage.total = total
        if done != stage.total and self._runtime.monotonic_s() - self._reported_s < PROGRESS_EVERY_S:
            return
        self._say_progress(fields)

    def _say_progress(self, fields: Mapping[str, Any]) -> None:
        self._reported_s = self._runtime.monotonic_s()
        self.say("progress", {**self._position(), **fields})

    def _position(self) -> dict[str, Any]:
        stage, now_s = self._stage, self._runtime.monotonic_s()
        took_s = now_s - stage.started_s
        rate = (stage.done - stage.done_at_start) / took_s if took_s > 0 else 0.0
        left = None if stage.total is None else stage.total - stage.done
        eta_s = None if left is None or rate <= 0 else round(left / rate, 1)
        return {
            "stage": stage.name,
            "done": stage.done,
            "total": stage.total,
            "rate": round(rate, 3),
            "eta_s": eta_s,
        }

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s / 4):
            now_s = self._runtime.monotonic_s()
            if now_s - self._said_s >= self._heartbeat_s * 0.75:
                idle_s = round(now_s - self._reported_s, 3)
                self.say("heartbeat", {**self._position(), "idle_s": idle_s})


def _in_json(line: Mapping[str, Any]) -> str:
    """One line of JSON; a name of the operating system that is not UTF-8 gets visible escapes."""
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_storable(line)).decode()


def _storable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {storable_text(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    plain = isinstance(value, int | float) or value is None
    return value if plain else storable_text(value, chars_max=_TEXT_CHARS_MAX)
