"""What a job says on stdout, heard with bounds: where it is, what it sealed, how it ended.

Only the newest position, the artifacts and the result are kept, so that a job may talk for days. A line that
is too long or no JSON object is counted and otherwise passed over; a job that never stops talking is ended
by whoever looks at `bytes_heard`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ringrift.decoding import convert_to, decode_as

LINE_BYTES_MAX = 4 * 2**20
ARTIFACTS_MAX = 10_000
DEPTH_MAX = 32  # of lists and tables in one another
INTEGER_MAX = 2**63 - 1
TEXT_CHARS_MAX = 200
BEFORE_WORK = ("", "starting", "reading")  # stages in which nothing is played or learned yet
POSITION = ("stage", "done", "total", "rate", "eta_s", "idle_s")
KNOWN = frozenset(("event", "kind", "elapsed_s", "cpu_s", "gpu_s", *POSITION))


class SaidArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file as the job announced it."""

    path: str
    artifact: str = "file"  # its kind
    sha256: str | None = None
    counts: dict[str, Any] = {}


class JobOutput:
    """Everything worth keeping of what one job said."""

    def __init__(self, *, now_s: float) -> None:
        self.heard_s = now_s  # when the last line came
        self.moved_s = now_s  # when it last did something worth a line
        self.working_s: float | None = None  # when it began with what it was ordered for
        self.bytes_heard = self.lines_refused = 0
        self.stage, self.last_line = "", ""
        self.done: float = 0
        self.total: float | None = None
        self.rate: float = 0.0
        self.eta_s: float | None = None
        self.cpu_s = self.gpu_s = 0.0
        self.extra: dict[str, Any] = {}  # what the stage adds to its progress
        self.artifacts: dict[str, SaidArtifact] = {}
        self.result: dict[str, Any] | None = None
        self._unfinished = bytearray()
        self._too_long = False

    def hear(self, chunk: bytes, *, now_s: float) -> None:
        """Take in the next piece of the output, wherever it is cut."""
        self.bytes_heard += len(chunk)
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for piece in rest:
            self._end_line(now_s)
            self._keep(piece)

    def _keep(self, piece: bytes) -> None:
        if len(self._unfinished) + len(piece) > LINE_BYTES_MAX:
            self._too_long = True
            self._unfinished.clear()
        elif not self._too_long:
            self._unfinished += piece

    def _end_line(self, now_s: float) -> None:
        line, too_long = bytes(self._unfinished), self._too_long
        self._unfinished.clear()
        self._too_long = False
        if not too_long and not line.strip():
            return
        self.heard_s = now_s
        said = None if too_long else _decode(line)
        if said is None:
            self.lines_refused += 1
            self.last_line = line[:TEXT_CHARS_MAX].decode("utf-8", "replace")
            return
        self._take(said, now_s)

    def _take(self, said: dict[str, Any], now_s: float) -> None:
        event = str(said.get("event", ""))
        self.cpu_s = max(self.cpu_s, number(said.get("cpu_s")) or 0.0)
        self.gpu_s = max(self.gpu_s, number(said.get("gpu_s")) or 0.0)
        if event != "heartbeat":
            self.moved_s = now_s
        if event in ("progress", "heartbeat"):
            before = (self.stage, self.done)
            self._take_position(said)
            if (self.stage, self.done) != before:
                self.moved_s = now_s
            if self.working_s is None and self.stage not in BEFORE_WORK:
                self.working_s = now_s
        elif event == "artifact":
            self._take_artifact(said)
        elif event == "result":
            self.result = said
            listed = said.get("artifacts")
            for each in listed if isinstance(listed, list) else ():
                self._take_artifact(each)

    def _take_position(self, said: dict[str, Any]) -> None:
        self.stage = str(said.get("stage", self.stage))[:TEXT_CHARS_MAX]
        self.done = number(said.get("done")) or 0
        self.total = number(said.get("total"))
        self.rate = number(said.get("rate")) or 0.0
        self.eta_s = number(said.get("eta_s"))
        if said["event"] == "progress":
            self.extra = {key: value for key, value in said.items() if key not in KNOWN}
        self.last_line = _in_words(self)

    def _take_artifact(self, said: Any) -> None:
        try:
            artifact = convert_to(said, SaidArtifact)
        except msgspec.ValidationError:
            self.lines_refused += 1
            return
        if len(self.artifacts) < ARTIFACTS_MAX or artifact.path in self.artifacts:
            before = self.artifacts.get(artifact.path)
            if before is not None and not artifact.counts:
                artifact = msgspec.structs.replace(artifact, counts=before.counts)
            self.artifacts[artifact.path] = artifact
        else:
            self.lines_refused += 1


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) <= INTEGER_MAX else None
    return value if math.isfinite(value) else None


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        said = decode_as(line, Any)
    except (msgspec.DecodeError, RecursionError):
        return None
    return said if isinstance(said, dict) and _is_plain(said) else None


def _is_plain(said: Any) -> bool:
    """Whether whoever takes it further can: not too deep, and no number beyond 64 bits."""
    level: list[Any] = [said]
    for _ in range(DEPTH_MAX):
        if any(type(each) is int and abs(each) > INTEGER_MAX for each in level):
            return False
        tables = [each.values() for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [each for inner in (*tables, *lists) for each in inner]
        if not level:
            return True
    return False


def _in_words(job_output: JobOutput) -> str:
    of = "" if job_output.total is None else f" of {job_output.total:g}"
    return f"{job_output.stage} {job_output.done:g}{of}"
