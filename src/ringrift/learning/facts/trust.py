"""What is not trusted: games that were recalled, and workers whose games do not hold when they are searched
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from ringrift.learning.facts.facts import Recalled
from ringrift.learning.facts.records import Shard, Unfinished
from ringrift.work.job.orders import JobOrder

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

    def judgement(self) -> ComparisonVerdict | None:
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
