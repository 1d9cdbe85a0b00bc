"""What the facts of a config add up to: shards, sample files, models and matches; which rows of them are
trained on, and what training may cost; which games are recalled, and how far each worker is trusted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import log
from typing import Any

import msgspec

from ringrift.errors import ConfigError
from ringrift.learning.facts.facts import Recalled
from ringrift.work.job.protocol import JobOrder
from ringrift.work.shares import board_and_players


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
    steps_per_row: float | None = None  # what its rows earned when they were accepted; 0 of a refused one
    machine: str = ""  # what its bits depend on, as the worker measured; where it has GPUs, as the job says
    can_be_recomputed: bool = False  # RingRift's own program was ordered
    resumed: tuple[str, ...] = ()  # files of unfinished games that its job was given
    turns: int = 0  # through how many such files, one after the other, a game of it came at most
    ordered_s: float = 0.0  # 0: nobody ordered it


SHARD_GAMES_MIN = 20  # fewer games do not condemn a shard
SHARD_QUALITY_MIN = 0.3
REFUSED_SHARE_MAX = 0.5


def refuse_shard(shard: Shard, *, by_score: bool = True) -> str | None:
    """Why nobody should learn from a checked shard; None if there is no reason, or nothing known.

    Without *by_score* only the rules of the game count, which always do.
    """
    if shard.state is not ShardState.CHECKED:
        return None
    games = shard.games + shard.refused
    if games < SHARD_GAMES_MIN:
        return None
    if shard.refused > REFUSED_SHARE_MAX * games:
        return f"{shard.refused} of its {games} games do not agree with the rules"
    if by_score and shard.quality is not None and shard.quality < SHARD_QUALITY_MIN:
        return f"the quality of its games is {shard.quality:.2f}, below {SHARD_QUALITY_MIN:.2f}"
    return None


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
    games_known: int = 0  # of its games: those that came as files of games, too
    written_s: float | None = None  # when somebody else's file was last written; None: not known


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


# Which rows are trained on, and how much: the replay window and the train bucket.
#
# The window grows more slowly than the data, so old games leave it while the config gets stronger. The bucket
# pays for training with new rows only: every accepted row earns sample-steps, and a training run spends them.
# Without new rows there is nothing to spend, however long ago the last training was.


EXPONENT, GROWTH = 0.75, 0.4
# Small boards: what a run of minutes learns from must not still be the games of its first net.
_BASE_ROWS = {"hex8": 10_000, "square8": 10_000, "square19": 100_000, "hexagonal": 150_000}
_BASE_ROWS_OTHER = 10_000
# Measured: with random openings and few full searches a window of 50,000 that stays so teaches more
# (docs/learning.md).
_BASE_ROWS_MEASURED = {"connect_four": 50_000}
_GROWTH_MEASURED = {"connect_four": 0.0}
RINGRIFT_BOARDS = frozenset(_BASE_ROWS)


def base_rows(config: str) -> int:
    """Return the size from which the window grows more slowly than the data; by the board's rows per game."""
    board, _ = board_and_players(config)
    return _BASE_ROWS.get(board) or _BASE_ROWS_MEASURED.get(board, _BASE_ROWS_OTHER)


def growth_of(config: str) -> float:
    """Return how fast the window grows beyond its base; 0: it stays."""
    return _GROWTH_MEASURED.get(board_and_players(config)[0], GROWTH)


def window_rows(rows_total: int, *, base: int, growth: float = GROWTH, share: float = 1.0) -> int:
    """Return how many of the newest rows are in the window: all of them up to *base*, a power law beyond.

    Of a *share* below 1, the newest rows of that.
    """
    if base <= 0:
        raise ConfigError(f"the window needs a base above 0, not {base}")
    if rows_total <= base:
        return max(0, round(rows_total * share))
    grown: float = (rows_total / base) ** EXPONENT
    return min(rows_total, round(share * base * (1 + growth * (grown - 1) / EXPONENT)))


def shards_in_window(
    shards: Iterable[Shard],
    rows_total: int,
    *,
    base: int,
    growth: float = GROWTH,
    share: float = 1.0,
    shards_max: int | None = None,
) -> tuple[Shard, ...]:
    """Return the checked shards, newest first as given, that fill the window; the last may reach over.

    At most *shards_max* of them: the oldest of the window are then left out.
    """
    taken: list[Shard] = []
    wanted, rows = window_rows(rows_total, base=base, growth=growth, share=share), 0
    for shard in shards:
        if rows >= wanted or len(taken) == shards_max:
            break
        if shard.state is ShardState.CHECKED and shard.rows > 0:
            taken.append(shard)
            rows += shard.rows
    return tuple(taken)


class BucketRules(msgspec.Struct, frozen=True, kw_only=True):
    """How training is paid for, in sample-steps: one row seen once."""

    steps_per_row: float = 4.0
    chunk_steps: int = 40_000  # what one training run spends
    cap_steps: int = 400_000  # what is not spent beyond this is forfeited
    rows_first_min: int = 2_000  # rows before the first network

    def __post_init__(self) -> None:
        if self.steps_per_row <= 0 or self.chunk_steps <= 0 or self.rows_first_min < 0:
            raise ConfigError("the train bucket needs positive steps per row and a positive chunk")
        if self.cap_steps < self.chunk_steps:
            raise ConfigError(f"a cap of {self.cap_steps} steps never holds a chunk of {self.chunk_steps}")


class TrainBucket(msgspec.Struct, frozen=True, kw_only=True):
    """What was earned, spent and forfeited. Nothing else changes `available`, so steps are conserved."""

    earned: float = 0.0
    spent: float = 0.0
    forfeited: float = 0.0

    @property
    def available(self) -> float:
        """Below 0 when rows were recalled after they had been spent: later rows pay for that first."""
        return self.earned - self.spent - self.forfeited


def earn(bucket: TrainBucket, rows: int, rules: BucketRules) -> TrainBucket:
    """Rows were accepted."""
    if rows < 0:
        raise ConfigError(f"{rows} rows cannot be accepted")
    filled = msgspec.structs.replace(bucket, earned=bucket.earned + rows * rules.steps_per_row)
    overflow = max(0.0, filled.available - rules.cap_steps)
    return msgspec.structs.replace(filled, forfeited=filled.forfeited + overflow)


def withdraw(bucket: TrainBucket, rows: int, rules: BucketRules) -> TrainBucket:
    """Rows were recalled; what they earned is taken back, in proportion from what was forfeited."""
    taken = min(bucket.earned, rows * rules.steps_per_row)
    forfeited_share = bucket.forfeited / bucket.earned if bucket.earned else 0.0
    forfeited = bucket.forfeited - taken * forfeited_share
    return msgspec.structs.replace(bucket, earned=bucket.earned - taken, forfeited=forfeited)


def spend(bucket: TrainBucket, steps: float) -> TrainBucket:
    """A training run saw *steps* rows."""
    if steps < 0:
        raise ConfigError(f"{steps} steps cannot be spent")
    return msgspec.structs.replace(bucket, spent=bucket.spent + steps)


def steps_to_train(bucket: TrainBucket, rules: BucketRules, *, rows_total: int, has_model: bool) -> int:
    """Return what a training run may spend now: one chunk, or 0 while it is not earned yet.

    The first network does not wait for a whole chunk, only for enough rows to be worth learning from.
    """
    if rows_total < rules.rows_first_min:
        return 0
    if not has_model:
        return max(0, min(rules.chunk_steps, int(bucket.available)))
    return rules.chunk_steps if bucket.available >= rules.chunk_steps else 0


def rows_missing(bucket: TrainBucket, rules: BucketRules, *, rows_total: int, has_model: bool) -> int:
    """Return how many more accepted rows the next training run waits for."""
    first = max(0, rules.rows_first_min - rows_total)
    if not has_model:
        return first
    lacking = max(0.0, rules.chunk_steps - bucket.available)
    return max(first, -int(-lacking // rules.steps_per_row))


# Recalls: which games they cover, by worker, model and time span.


def is_recalled(
    recalls: Sequence[Recalled], *, worker: str, models: Collection[str | None], at_s: float
) -> bool:
    """Whether any recall covers games of *worker*, made with *models*, at *at_s*."""
    return any(_covers(recall, worker, models, at_s) for recall in recalls)


def are_games_recalled(
    recalls: Sequence[Recalled], made: Shard | Unfinished, unfinished: Mapping[str, Unfinished]
) -> bool:
    """Whether any recall covers a worker and a model that played in the games of *made*."""
    return any(
        is_recalled(recalls, worker=each.worker, models=(each.model,), at_s=each.made_s)
        for each in makers_of(made, unfinished)
    )


def makers_of(made: Shard | Unfinished, unfinished: Mapping[str, Unfinished]) -> Iterator[Shard | Unfinished]:
    """*made*, and the files through which its games came from job to job."""
    yield made
    seen: set[str] = set()
    last: list[Shard | Unfinished] = [made]
    for _ in range(made.turns):
        before = dict.fromkeys(digest for each in last for digest in each.resumed if digest not in seen)
        if not before:
            return
        seen |= before.keys()
        last = [unfinished[digest] for digest in before if digest in unfinished]
        yield from last


def _covers(recall: Recalled, worker: str, models: Collection[str | None], at_s: float) -> bool:
    """All that the recall names must hold; one that names nothing covers nothing."""
    if recall.worker is None and recall.model is None and recall.from_s is None and recall.until_s is None:
        return False
    return (
        (recall.worker is None or recall.worker == worker)
        and (recall.model is None or recall.model in models)
        and (recall.from_s is None or at_s >= recall.from_s)
        and (recall.until_s is None or at_s < recall.until_s)
    )


# What the facts say of each worker: what it brought, how its games compared, and whether it is set aside.
#
# A share of the games is searched again by another worker. One that does not find the same says so, and a
# third decides who was right; without a third the player itself, and then the other one, are asked once more:
# whoever does not find again what it found before is at fault. Where even that leaves two words against each
# other, the comparison is *disputed*, and nobody is set aside for it.
#
# Suspicion adds up by a sequential test (CUSUM): a fault weighs `FAULT`, a good comparison takes `GOOD` away,
# down to zero, and above `SUSPICION_MAX` the worker is set aside. That is the second fault within about 13
# comparisons. If one comparison of a thousand failed for an honest worker, it would be set aside once in
# 70,000 comparisons.


HONEST_FAULTS, BAD_FAULTS = 0.001, 0.2  # of comparisons: what nobody is to blame for, and what somebody is
FAULT = log(BAD_FAULTS / HONEST_FAULTS)
GOOD = log((1 - BAD_FAULTS) / (1 - HONEST_FAULTS))
SUSPICION_MAX = log(2_000)
RECENT_SHARDS = 32
FAULTS_KEPT = 5
VOTES_MAX = 3
DUPLICATE = "duplicate"  # two games may well be the same by chance


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why a worker gets no work, and until when."""

    reason: str
    since_s: float
    until_s: float
    by: str  # the plan, a person, or the config that found it

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s


@dataclass(slots=True)
class WorkerStanding:
    """One worker, as far as one config knows it."""

    name: str
    jobs: int = 0
    games: int = 0
    games_of_user_program: int = 0  # which cannot be searched again
    rows: int = 0
    refused: int = 0  # games that broke the rules
    clean_shards: int = 0  # checked, without such a game
    last_games_s: float = 0.0
    compared: int = 0  # comparisons of its games that were decided
    games_compared: int = 0
    moves_compared: int = 0
    recomputed: int = 0  # comparisons that it made of games of others
    faults: int = 0  # comparisons that found it wrong, as a player or as the one that compared
    disputed: int = 0
    suspicion: float = 0.0
    refusals: float = 0.0  # the same for games that broke the rules
    asked_s: float | None = None  # when its games were last given to another; None: never
    shards_since: int = 0  # that it brought since, finished games or not
    good_until_s: float | None = None  # when the last shard that compared well was brought
    recent: deque[tuple[str, JobOrder]] = field(default_factory=lambda: deque(maxlen=RECENT_SHARDS))
    words: deque[str] = field(default_factory=lambda: deque(maxlen=FAULTS_KEPT))  # of its last faults
    set_aside: SetAside | None = None

    def brought(self, shard: Shard, order: JobOrder) -> None:
        """A file of games came; only what our own program played can be searched again."""
        self.games += shard.games
        self.rows += shard.rows
        self.last_games_s = max(self.last_games_s, shard.made_s)
        if not shard.can_be_recomputed:
            self.games_of_user_program += shard.games
            return
        self._can_be_compared(shard.digest, order)

    def handed_over(self, held: Unfinished, order: JobOrder) -> None:
        """A file of unfinished games came, in which others go on."""
        self.last_games_s = max(self.last_games_s, held.made_s)
        if held.can_be_recomputed and held.moves:
            self._can_be_compared(held.digest, order)

    def _can_be_compared(self, digest: str, order: JobOrder) -> None:
        self.shards_since += 1
        self.recent.append((digest, order))

    def checked(self, reasons: Mapping[str, int]) -> None:
        """Its games were replayed by the rules."""
        refused = sum(count for reason, count in reasons.items() if reason != DUPLICATE)
        self.refused += refused
        self.clean_shards += not refused
        self.refusals = max(0.0, self.refusals + (FAULT if refused else GOOD))
        if refused:
            self.words.append(f"{refused} games broke the rules: {', '.join(sorted(reasons))}")

    def asked(self, at_s: float) -> None:
        self.asked_s, self.shards_since = at_s, 0

    def agreed(self, made_s: float) -> None:
        self.suspicion = max(0.0, self.suspicion + GOOD)
        self.good_until_s = max(made_s, self.good_until_s or made_s)

    def failed(self, why: str) -> None:
        self.faults += 1
        self.suspicion += FAULT
        self.words.append(why)

    def start_again(self) -> None:
        """Forget suspicion; the next games are compared at once."""
        self.suspicion = self.refusals = 0.0
        self.asked_s = None

    def is_set_aside(self, now_s: float) -> bool:
        return self.set_aside is not None and self.set_aside.holds(now_s)


@dataclass(frozen=True, slots=True)
class Vote:
    """One worker's computation of recorded games."""

    worker: str
    agrees: bool
    text: str


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """Who was right."""

    at_fault: frozenset[str]
    is_disputed: bool = False


@dataclass(slots=True)
class Comparison:
    """Games of a shard that were given to others, and what they found."""

    shard: str
    player: str
    order: JobOrder  # of the first computation: the others look at the same moves
    votes: list[Vote] = field(default_factory=list)

    def judgment(self) -> ComparisonVerdict | None:
        """Who is at fault, nobody being a good comparison; None while more computations are needed."""
        votes = self.votes
        if any(vote.worker == self.player and not vote.agrees for vote in votes):
            return ComparisonVerdict(frozenset({self.player}))  # it does not find its own games again
        differing = {vote.worker for vote in votes if not vote.agrees}
        agreeing = {vote.worker for vote in votes if vote.agrees and vote.worker != self.player}
        if not differing:
            return ComparisonVerdict(frozenset())
        if fickle := differing & agreeing:
            return ComparisonVerdict(frozenset(fickle))
        if agreeing:
            return ComparisonVerdict(frozenset(differing))
        if len(differing) > 1:
            return ComparisonVerdict(frozenset({self.player}))
        return ComparisonVerdict(frozenset(), is_disputed=True) if len(votes) >= VOTES_MAX else None

    def not_by(self) -> tuple[str, ...]:
        """Who should rather not compute next; the first would, if there is nobody else."""
        done = dict.fromkeys((self.player, *(vote.worker for vote in self.votes)), 0)
        done[self.player] = 1
        for vote in self.votes:
            done[vote.worker] += 1
        return tuple(sorted(done, key=lambda name: (done[name], name != self.player, name)))

    def difference(self) -> str:
        return next((vote.text for vote in self.votes if not vote.agrees), "")
