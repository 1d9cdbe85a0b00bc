"""What the facts add up to: shards, sample files, models and matches of one config."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class ShardState(StrEnum):
    """How far a shard is trusted."""

    UNCHECKED = "unchecked"
    CHECKED = "checked"  # replayed by the rules; `rows` counts the accepted games only
    REFUSED = "refused"  # no game of it agrees with the rules
    RECALLED = "recalled"


class Shard(msgspec.Struct, kw_only=True):
    """A sealed file of games."""

    digest: str
    job_id: str
    name: str
    state: ShardState
    games: int  # accepted, once checked; claimed before
    rows: int
    refused: int = 0
    reasons: dict[str, int] = {}
    model: str | None  # generator; None: no network
    simulations: int
    worker: str
    made_s: float
    cpu_s: float
    quality: float | None = None
    report: str | None = None  # digest of the check's report
    steps_per_row: float | None = None  # what its rows earned when they were accepted
    machine: str = ""  # what its bits depend on, as the worker measured; where it has GPUs, as the job says
    can_be_recomputed: bool = False  # RingRift's own program was ordered
    resumed: tuple[str, ...] = ()  # files of unfinished games that its job was given
    turns: int = 0  # through how many such files, one after the other, a game of it came at most
    ordered_s: float = 0.0  # 0: nobody ordered it


class Unfinished(msgspec.Struct, kw_only=True):
    """A sealed file of games in progress, for a later job to go on with."""

    digest: str
    job_id: str
    games: int
    moves: int
    model: str | None  # who played last in them; None: no network
    worker: str
    made_s: float
    machine: str = ""  # this and the next three as of a shard
    can_be_recomputed: bool = False
    resumed: tuple[str, ...] = ()
    turns: int = 0
    taken_by: str = ""  # the job that has it, or had it and ended well; empty: nobody
    failures: int = 0  # jobs that had it and failed


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """An exported file of samples."""

    digest: str
    job_id: str
    rows: int
    games: int
    shards: tuple[str, ...]
    made_s: float
    rows_generated: int  # accepted rows of the config when it was exported


class ModelState(StrEnum):
    """Where a model is in its life."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    STAGING = "staging"  # stronger than the champion; the last gate before its place is open
    PRODUCTION = "production"
    SUPERSEDED = "superseded"  # was the champion, and may be again
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    ARCHIVED = "archived"


class Model(msgspec.Struct, kw_only=True):
    """A trained network."""

    digest: str
    card: str  # digest of its card
    job_id: str
    number: int  # 1 for the first of the config
    parent: str | None
    samples: str  # digest of the newest file it was trained on
    sample_files: tuple[str, ...]  # all of them
    rows_seen: int  # rows of all its training, repeats and parents included
    steps_spent: int  # rows of this training that new rows paid for
    losses: dict[str, Any]
    made_s: float
    state: ModelState
    history: list[tuple[float, str, str]]  # time, state, reason
    preset: str = ""  # its size; empty: not known
    purpose: str = ""  # empty: to be the champion; else what the student is for
    checkpoint: str = ""  # digest of its learner, to train on from; empty: made before they were kept


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Games between two participants. A model takes part under its digest, a baseline under its name.

    With more than two seats the first sits alone among copies of the second, once in every seat; `places`
    then counts how often it came first, second and so on.
    """

    job_id: str
    first: str
    second: str
    simulations: int
    players: int
    games: int
    wins: int
    draws: int
    losses: int
    pairs: tuple[int, int, int, int, int] | None  # two seats: pairs by points of the first, 0 to 2
    places: tuple[int, ...] = ()
    score: float = 0.0
    at_s: float = 0.0
    worker: str = ""
    purpose: str = "promotion"  # promotion, rating, rollback
    recalled: bool = False
    cpu_s: float = 0.0  # of its job, by its games
