"""How files are cut into requests: small ones many at a time, large ones some chunks at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact
from ringrift.data.transfer.chunks import chunk_count
from ringrift.data.transfer.messages import BATCH_BYTES_MAX, CHUNKS_AT_ONCE, FILES_AT_ONCE, File
from ringrift.data.transfer.receiving import SMALL_BYTES_MAX
from ringrift.runtime import Runtime

REQUEST_S = 20.0  # that a request with small files should take at most
UNKNOWN_BYTES = 1 << 18  # in a request to a node whose line was not measured yet
AT_ONCE_MIN, MEASURED_MIN = 1 << 14, 1 << 15


class LineSpeed:
    """How fast requests to one node were, and so how much of small files one of them should carry."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._bytes_per_s: float | None = None

    @property
    def bytes_at_once(self) -> int:
        if self._bytes_per_s is None:
            return UNKNOWN_BYTES
        return max(AT_ONCE_MIN, int(self._bytes_per_s * REQUEST_S))

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Time a request; one with few bytes measures the way and not the line."""
        begun_s = self._runtime.monotonic_s()
        yield
        if size >= MEASURED_MIN:
            self._bytes_per_s = size / max(1e-3, self._runtime.monotonic_s() - begun_s)


@dataclass(slots=True)
class SmallFiles:
    """Files that one request carries whole."""

    artifacts: Sequence[Artifact]
    tries: int = 0

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(File(artifact.digest, artifact.size) for artifact in self.artifacts)

    @property
    def size(self) -> int:
        return sum(artifact.size for artifact in self.artifacts)

    def cut_down(self, bytes_max: int) -> list[SmallFiles | ChunkSegment]:
        """Keep so much as one request should carry; return the rest, a single large file in chunks.

        A request that breaks off leaves nothing of its files at the receiver; of a chunk, what came stays.
        """
        if self.size <= bytes_max:
            return []
        kept, size = 0, 0
        for artifact in self.artifacts:
            size += artifact.size
            if size > bytes_max:
                break
            kept += 1
        rest = self.artifacts[max(1, kept) :]
        others: list[SmallFiles | ChunkSegment] = [SmallFiles(rest)] if rest else []
        if not kept:
            others = [*LargeFile(self.artifacts[0]).segments(), *others]
        self.artifacts = self.artifacts[:kept]
        return others

    def halves(self) -> tuple[SmallFiles, SmallFiles]:
        """Two smaller requests, for a line that breaks before one of this size is through."""
        middle = len(self.artifacts) // 2
        return SmallFiles(self.artifacts[:middle]), SmallFiles(self.artifacts[middle:])


@dataclass(slots=True)
class LargeFile:
    """A file that takes many requests; the last one to end seals it."""

    artifact: Artifact
    segments_left: int = 0
    rounds: int = 0  # how often the receiver had forgotten what it has
    lost: bool = False

    @property
    def file(self) -> File:
        return File(self.artifact.digest, self.artifact.size)

    def segments(self) -> list[ChunkSegment]:
        count = chunk_count(self.artifact.size)
        firsts = range(0, count, CHUNKS_AT_ONCE)
        self.segments_left = len(firsts)
        return [ChunkSegment(self, range(first, min(first + CHUNKS_AT_ONCE, count))) for first in firsts]


@dataclass(slots=True)
class ChunkSegment:
    """Some neighbouring chunks of a large file."""

    of: LargeFile
    positions: range
    tries: int = 0
    missing: int | None = field(default=None)  # bytes, at the last look
    moved: bool = False

    def found_missing(self, count: int) -> None:
        """Note how much the receiver lacks; less than before means that the line gets us further."""
        if self.missing is not None and count < self.missing:
            self.tries = 0
        self.missing = count


def cut(artifacts: Iterable[Artifact]) -> list[SmallFiles | ChunkSegment]:
    """All requests for these files: large files first, as they take longest."""
    small: list[Artifact] = []
    pieces: list[SmallFiles | ChunkSegment] = []
    for artifact in artifacts:
        if artifact.size > SMALL_BYTES_MAX:
            pieces += LargeFile(artifact).segments()
        else:
            small.append(artifact)
    return pieces + _batches(small)


def _batches(small: Sequence[Artifact]) -> list[SmallFiles | ChunkSegment]:
    batches: list[SmallFiles | ChunkSegment] = []
    waiting: list[Artifact] = []
    size = 0
    for artifact in small:
        if waiting and (size + artifact.size > BATCH_BYTES_MAX or len(waiting) >= FILES_AT_ONCE):
            batches.append(SmallFiles(waiting))
            waiting, size = [], 0
        waiting.append(artifact)
        size += artifact.size
    return [*batches, SmallFiles(waiting)] if waiting else batches
