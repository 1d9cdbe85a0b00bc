"""Which models are kept for their history only. Archiving deletes nothing: artifacts stay in the blobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ringrift.learning.ratings import Rating, rate
from ringrift.learning.records import Model, ModelState
from ringrift.learning.state import ConfigState

UNUSED_S_MAX = 7 * 24 * 3600.0
WEAK_RATING, WEAK_GAMES_MIN = 1400.0, 100
FORMER_CHAMPIONS_KEPT = 5  # a rollback may need them

_LOST = frozenset({ModelState.REJECTED, ModelState.ROLLED_BACK})
# These are in use, whatever their age.
_IN_USE = frozenset({ModelState.TRAINING, ModelState.EVALUATING, ModelState.PRODUCTION, ModelState.ARCHIVED})


def to_archive(
    state: ConfigState, now_s: float, *, ratings: Mapping[str, Rating] | None = None
) -> list[tuple[str, str]]:
    """The models that nothing needs any more, with the reason. *ratings* saves computing them again."""
    kept = _still_needed(state)
    found: dict[str, str] = {}
    for model in state.models.values():
        if model.state in _IN_USE or model.digest in kept:
            continue
        if model.state is ModelState.STAGING:
            found[model.digest] = "superseded, and more champions back than a rollback goes"
        elif now_s - last_change_s(model) > UNUSED_S_MAX:
            found[model.digest] = "not in use for seven days"
    games = _games(state)
    weak = [
        model
        for model in state.models.values()
        if model.state in _LOST and games[model.digest] >= WEAK_GAMES_MIN and model.digest not in found
    ]
    if weak and state.champion is not None:
        known = rate(state.trusted_matches()) if ratings is None else ratings
        found |= _weak(weak, state.champion, known, kept)
    return list(found.items())


def last_change_s(model: Model) -> float:
    return model.history[-1][0] if model.history else model.made_s


def _still_needed(state: ConfigState) -> set[str]:
    """The newest model is the parent of the next; the last champions are where a rollback leads."""
    needed = {state.champion} if state.champion is not None else set()
    if state.newest_model is not None:
        needed.add(state.newest_model.digest)
    former = [change.model for change in state.promotions if change.model != state.champion]
    return needed | set(list(dict.fromkeys(reversed(former)))[:FORMER_CHAMPIONS_KEPT])


def _games(state: ConfigState) -> Counter[str]:
    games: Counter[str] = Counter()
    for match in state.trusted_matches():
        games[match.first] += match.games
        games[match.second] += match.games
    return games


def _weak(
    models: list[Model], champion: str, ratings: Mapping[str, Rating], kept: set[str]
) -> dict[str, str]:
    """Below the bar, once the champion is above it: until then the bar says nothing of the model."""
    best = ratings.get(champion)
    if best is None or best.rating < WEAK_RATING:
        return {}
    return {
        model.digest: f"rated {found.rating:.0f} after {found.games} games"
        for model in models
        if (found := ratings.get(model.digest)) is not None
        and found.rating < WEAK_RATING
        and model.digest not in kept
    }
