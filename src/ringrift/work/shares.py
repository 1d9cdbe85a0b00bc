"""How much of the workers each config gets, how deep it searches, and how much work is kept ready."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import msgspec

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import parse_config_key
from ringrift.work.worker.records import WorkerRecord

# Whose turn it is: configs share the processor time of the workers, by one score each.
#
# They share by fair queueing with start tags. The processor seconds that a config was served with work of any
# kind, divided by its share, are its tag; the lowest tag goes next. A config that comes back after a long
# absence starts at the tag of whoever started last, so absence earns at most one turn. Shares follow the
# expected gain per cost, with a floor that keeps every config alive and a ceiling for each.


PREPARING = ("validate", "export", "recompute")  # seconds of work: they check games and make samples of them

SHARE_MIN, SHARE_MAX = 0.03, 0.30
WEIGHT_MIN, WEIGHT_MAX = 0.5, 2.0  # of the curriculum
TARGET_RATING = 2000.0
GAP_FULL = 200.0  # rating points below the target from which the gap no longer damps a config
PRIOR_RATE = 50.0  # rating points per hour of work, while none of the configs has a measured rate


def next_kind(served: Mapping[str, float], shares: Mapping[str, float], wanted: Collection[str]) -> str:
    """Return whichever of *wanted* has been served least for its share.

    *served* are the seconds of `FairTurns.served`, which bound what an absence may earn.
    """
    if not wanted:
        raise ConfigError("nothing is wanted, so nothing is next")
    unknown = sorted(kind for kind in wanted if not shares.get(kind, 0.0) > 0.0)
    if unknown:
        raise ConfigError(f"no share is set for {', '.join(unknown)}")
    return min(wanted, key=lambda kind: (served.get(kind, 0.0) / shares[kind], -shares[kind], kind))


class FairTurns(msgspec.Struct, frozen=True, kw_only=True):
    """What each was served. A value: `started` and `ended` return the next one.

    Tags are kept, not seconds, so a new share counts from now on. With seconds, a config whose share fell to
    a tenth would wait until the others had ten times its past.
    """

    tags: dict[str, float] = {}
    tag: float = 0.0  # of whoever started last

    def started(self, name: str, *, share: float, expected_s: float) -> FairTurns:
        """A job of *name* began; its expected time counts until `ended` knows the measured one."""
        start = max(self.tags.get(name, 0.0), self.tag)
        return FairTurns(tags={**self.tags, name: start + expected_s / share}, tag=start)

    def ended(self, name: str, *, share: float, expected_s: float, measured_s: float) -> FairTurns:
        corrected = max(0.0, self.tags.get(name, 0.0) + (measured_s - expected_s) / share)
        return FairTurns(tags={**self.tags, name: corrected}, tag=self.tag)

    def served(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return seconds that give the tags under *shares*, for `next_kind`."""
        return {name: self.tags.get(name, 0.0) * share for name, share in shares.items()}


class ConfigView(msgspec.Struct, frozen=True, kw_only=True):
    """What the share of a config follows from."""

    config: str
    rating: float | None = None  # None: not measured yet
    target: float = TARGET_RATING
    rate_per_hour: float | None = None  # rating points per hour of work, by centered regression
    rate_error: float = 0.0  # standard error of that
    hours_served: float = 0.0  # hours of work the config has had
    weight: float = 1.0  # what feedback makes of its score


def config_score(view: ConfigView, *, prior_rate: float, hours_total: float) -> float:
    """Return the rating points per hour of work that the config may hope for; 0 at its target.

    What is not known counts as the prior, and little effort so far counts as hope: an upper confidence
    bound, so a config with few hours is tried and one that went down is not given up.
    """
    gap = math.inf if view.rating is None else view.target - view.rating
    damping = min(1.0, max(0.0, gap) / GAP_FULL)
    rate = prior_rate if view.rate_per_hour is None else max(0.0, view.rate_per_hour + view.rate_error)
    hope = prior_rate * math.sqrt(math.log1p(max(0.0, hours_total)) / (1.0 + max(0.0, view.hours_served)))
    return view.weight * damping * (rate + hope)


def config_shares(views: Sequence[ConfigView]) -> dict[str, float]:
    """Return the share of self-play by config: positive, and 1 in sum.

    A config at its target keeps the floor, because ratings that nobody renews go stale. The ceiling is
    30 % or twice an even share, whichever is more: with few configs 30 % each would not add up.
    """
    if not views:
        return {}
    if len({view.config for view in views}) != len(views):
        raise ConfigError("a config is listed twice")
    rates = sorted(view.rate_per_hour for view in views if view.rate_per_hour and view.rate_per_hour > 0)
    prior = rates[len(rates) // 2] if rates else PRIOR_RATE
    hours = sum(view.hours_served for view in views)
    scores = {view.config: config_score(view, prior_rate=prior, hours_total=hours) for view in views}
    even = 1.0 / len(views)
    return _clipped_shares(scores, low=min(SHARE_MIN, even / 2), high=min(1.0, max(SHARE_MAX, 2 * even)))


def curriculum_weight(share: float, configs: int) -> float:
    """Return *share* as the documents' curriculum weight: 1 is an even share."""
    return round(min(WEIGHT_MAX, max(WEIGHT_MIN, share * configs)), 3)


def curriculum_weights(shares: Mapping[str, float]) -> dict[str, float]:
    return {config: curriculum_weight(share, len(shares)) for config, share in shares.items()}


def _clipped_shares(scores: Mapping[str, float], *, low: float, high: float) -> dict[str, float]:
    """Scale the scores to a sum of 1 with every share in [low, high]; the bounds must allow it."""
    if max(scores.values()) <= 0.0:
        return dict.fromkeys(scores, 1.0 / len(scores))
    fixed: dict[str, float] = {}
    while True:
        free = {name: score for name, score in scores.items() if name not in fixed}
        left, total = 1.0 - sum(fixed.values()), sum(free.values())
        shares = {name: left * (score / total if total else 1.0 / len(free)) for name, score in free.items()}
        below = {name: low for name, share in shares.items() if share < low}
        above = {name: high for name, share in shares.items() if share > high}
        # Fixing the side with the greater excess first never has to be taken back.
        lacking = sum(low - shares[name] for name in below)
        exceeding = sum(shares[name] - high for name in above)
        if not below and not above:
            return {name: fixed.get(name, shares.get(name, 0.0)) for name in scores}
        fixed |= below if lacking >= exceeding else above


# How many simulations a self-play move gets, and how many games a config needs.
#
# Early games are searched lightly, because a weak network gains more from many games than from deep ones; the
# budget grows with the rating. A game records the budget it was played with.


BUDGET_MIN = 16
INTENSITY_MIN, INTENSITY_MAX = 0.5, 1.75
LARGE_BOARDS = frozenset({"square19", "hexagonal"})
GAMES_NEEDED_MAX = 500_000

_GAMES = "ringrift.games"
_BY_GAMES = ((100, 64), (500, 150), (1000, 300))
_BY_RATING = ((1800.0, 3200), (1600.0, 1600))
_BUDGET_GROWN = 800
_LARGE_GAMES_FEW, _LARGE_BUDGET_FEW, _LARGE_BUDGET = 500, 400, 800
_MORE_SEATS_FACTOR = 0.8
_BOARD_FACTORS = {"hex8": 1.0, "square8": 1.2, "square19": 2.0, "hexagonal": 2.5}
_SEAT_FACTORS = {2: 1.0, 3: 1.5, 4: 2.5}
_GAMES_PER_POINT = 500
_QUALITY_FACTORS = ((0.3, 1.5), (0.5, 1.3), (0.7, 1.0))


def split_whole(total: int, weights: Mapping[str, float], *, least: int = 0) -> dict[str, int]:
    """Give everybody *least*, and split what *total* leaves by *weights*, with nothing lost in rounding."""
    whole, rest = sum(weights.values()), max(0, total - least * len(weights))
    exact = {name: rest * weight / whole if whole else 0.0 for name, weight in weights.items()}
    found = {name: least + math.floor(part) for name, part in exact.items()}
    # Who lost most in rounding comes first; a weight of 0 has nothing due.
    waiting = sorted((name for name in exact if weights[name] > 0), key=lambda name: -(exact[name] % 1.0))
    for name in waiting[: rest - sum(map(math.floor, exact.values()))]:
        found[name] += 1
    return found


def split_config(config: str) -> tuple[str, int | None]:
    """Split `square8_2p`; what is no such key, as those of families of games, is all board."""
    try:
        key = parse_config_key(config)
    except ConfigError:
        return config, None
    return key.board, key.players


def board_and_players(config: str) -> tuple[str, int]:
    """Split `square8_2p`; a key without a number of players counts as two."""
    board, players = split_config(config)
    return board, 2 if players is None else players


def check_config(key: str) -> None:
    """Raise `ConfigError`, which says what there is, for what can be no config: no installed game has it.

    Only the names of games are read and none is loaded, so what else a game demands, its jobs say.
    """
    boards = known_boards()
    family, colon, _ = key.partition(":")
    if colon and family in boards:
        return
    board, players = split_config(key)
    if players is None or board not in boards:
        raise ConfigError(f"{key!r} is no config; {known_configs()}")


def known_configs() -> str:
    boards = ", ".join(f"{name}:GAME" if name == "open_spiel" else f"{name}_2p" for name in known_boards())
    return f"there are {boards} (RingRift's boards also with _3p and _4p)"


def known_boards() -> list[str]:
    return sorted({point.name for point in entry_points(group=_GAMES)})


def search_budget(config: str, *, games: int, rating: float | None, intensity: float = 1.0) -> int:
    """Return the simulations per move for a config with *games* accepted games and a champion of *rating*."""
    board, players = board_and_players(config)
    budget = float(_budget_by_progress(games, rating))
    if board in LARGE_BOARDS:
        budget = min(budget, _LARGE_BUDGET_FEW if games < _LARGE_GAMES_FEW else _LARGE_BUDGET)
    if players > 2:
        budget *= _MORE_SEATS_FACTOR
    budget *= min(INTENSITY_MAX, max(INTENSITY_MIN, intensity))
    return max(BUDGET_MIN, round(budget))


def games_needed(config: str, *, rating: float | None, target: float = 1900.0) -> int:
    """Return how many games the way to *target* may take; 0 at it."""
    board, players = board_and_players(config)
    gap = max(0.0, target - (1500.0 if rating is None else rating))
    factor = _BOARD_FACTORS.get(board, 1.0) * _SEAT_FACTORS.get(players, 1.0)
    return min(GAMES_NEEDED_MAX, round(gap * _GAMES_PER_POINT * factor))


def quality_factor(quality: float | None) -> float:
    """Return how many times the games poor data asks for; unknown quality changes nothing."""
    if quality is None:
        return 1.0
    return next((factor for below, factor in _QUALITY_FACTORS if quality < below), 0.9)


def _budget_by_progress(games: int, rating: float | None) -> int:
    for below, budget in _BY_GAMES:
        if games < below:
            return budget
    for at_least, budget in _BY_RATING:
        if rating is not None and rating >= at_least:
            return budget
    return _BUDGET_GROWN


# How much work is kept ready: as much as can be taken now, and a little more.
#
# Work is made when somebody can do it, never by a timer, so the queue cannot grow ahead of the workers. The
# loop orders games by `wanted_items`, and the queue populator shows the same answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLimits:
    """Bounds on what waits in the queue."""

    ahead: int = 1  # items beyond what the slots take: nobody is idle while the next is planned
    soft: int = 500  # from here on only what is running is replaced
    hard: int = 1000  # from here on nothing is added
    trickle: int = 1  # what goes on when production is to stop, so that ratings and health stay fresh

    def __post_init__(self) -> None:
        if self.ahead < 0 or not 0 < self.soft <= self.hard or self.trickle < 0:
            raise ConfigError("the supply needs 0 <= ahead, 0 < soft <= hard and 0 <= trickle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """How many items to add now, and why."""

    items: int
    reason: str
    slots: int
    ready: int
    claimed: int


def slots_for(workers: Iterable[WorkerRecord], kind: str) -> int:
    """Return the slots of those workers that take jobs of *kind*."""
    return sum(
        worker.slots
        for worker in workers
        if not worker.stopping and not worker.set_aside and (worker.kinds is None or kind in worker.kinds)
    )


def wanted_items(
    slots: int,
    *,
    ready: int,
    claimed: int,
    throttle: float = 1.0,
    limits: SupplyLimits | None = None,
) -> Supply:
    """Return how many items to add.

    *throttle* is the part of full speed that backpressure leaves: at 0 a trickle goes on.
    """
    limits = limits or SupplyLimits()
    if min(slots, ready, claimed) < 0 or not 0.0 <= throttle <= 1.0:
        raise ConfigError("slots and items are never negative, and the throttle is between 0 and 1")

    def supply(items: int, reason: str) -> Supply:
        return Supply(items=items, reason=reason, slots=slots, ready=ready, claimed=claimed)

    if ready >= limits.hard:
        return supply(0, f"{ready} items wait, which is the most that may")
    if slots == 0:
        return supply(0, "no worker takes such work")
    if throttle == 0.0:
        items = max(0, min(limits.trickle, slots) - ready - claimed)
        return supply(items, "production is to stop: only a trickle goes on")
    ahead = 0 if ready >= limits.soft else limits.ahead
    target = math.ceil(slots * throttle) + ahead
    items = max(0, min(target - ready - claimed, limits.hard - ready))
    if throttle < 1.0 and not items:
        return supply(0, f"backpressure leaves games {throttle:.0%} of {slots} slots")
    if items:
        return supply(items, f"{slots} slots can take more than the {ready + claimed} items there are")
    return supply(0, f"{ready} items wait for {slots} slots")
