"""What moves between nodes: sealed files, named by their hash, with a card that says what they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from ringrift.engine.encoding import check_digest
from ringrift.errors import ConfigError

WORD_LETTERS_MAX = 1000


class ArtifactKind(StrEnum):
    """What a sealed file is. The values are those that jobs use in their reports."""

    GAMES = "shard"
    UNFINISHED = "unfinished"  # games in progress, for a later job to go on with
    SAMPLES = "samples"
    MODEL = "model"
    CHECKPOINT = "checkpoint"  # weights, averages and optimizer, to train on from
    CARD = "card"
    REPORT = "report"
    SNAPSHOT = "snapshot"  # a database, taken by its backup API
    OTHER = "other"


DATA_TYPES: dict[str, frozenset[ArtifactKind]] = {
    "games": frozenset({ArtifactKind.GAMES}),
    "models": frozenset({ArtifactKind.MODEL, ArtifactKind.CARD}),
    "npz": frozenset({ArtifactKind.SAMPLES}),
    "all": frozenset(ArtifactKind),
}
_SINGULAR = {"game": "games", "model": "models", "checkpoint": "models"}
_TYPE_OF = {kind: name for name, kinds in DATA_TYPES.items() if name != "all" for kind in kinds}


def data_type_of(kind: ArtifactKind) -> str:
    """What a node must accept to be given files of *kind*; "all" for those that every node takes."""
    return _TYPE_OF.get(kind, "all")


class Artifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The card of one sealed file. Two cards of one digest say the same; the first one stays."""

    digest: str
    size: int
    kind: ArtifactKind = ArtifactKind.OTHER
    name: str = ""
    config: str = ""
    node: str = ""  # where it was made
    games: int = 0
    rows: int = 0
    created_s: float = 0.0
    quality: float | None = None

    def __post_init__(self) -> None:
        check_digest(self.digest)
        if self.size < 0:
            raise ConfigError(f"artifact {self.digest[:12]} has the size {self.size}")


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node read the whole file and its hash was right. Nothing less counts as a copy."""

    digest: str
    node: str
    size: int
    verified_s: float  # by the clock of the node that verified it
    verifier: str = ""  # who read it: a transport, the scrubber, the worker that made it


class Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)


def in_batches(files: Iterable[S], *, files_max: int, bytes_max: float = math.inf) -> Iterator[list[S]]:
    """Cut a list into bounded parts, in its order; a file above *bytes_max* is a part of its own."""
    batch: list[S] = []
    size = 0
    for file in files:
        if batch and (len(batch) >= files_max or size + file.size > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def check_words(card: Artifact) -> None:
    """Refuse a card from elsewhere whose words would upset a terminal or a path; raises `ConfigError`."""
    for word in (card.name, card.config, card.node):
        if len(word) > WORD_LETTERS_MAX or not word.isprintable() or word.startswith("-"):
            raise ConfigError(f"the card of {card.digest[:12]} holds the name {word[:40]!r}")


def kinds_of(data_type: str) -> frozenset[ArtifactKind]:
    """Return the kinds that "games", "models", "npz" or "all" (or their singular) mean."""
    return DATA_TYPES[data_type_named(data_type)]


def data_type_named(data_type: str) -> str:
    """Both "game" and "games" are understood; `ConfigError` for what is neither."""
    known = _SINGULAR.get(data_type, data_type)
    if known not in DATA_TYPES:
        raise ConfigError(f"data_type is {data_type!r}; it must be one of {', '.join(DATA_TYPES)}")
    return known
