"""Which models are kept for their history only. Archiving deletes nothing: artifacts stay in the blobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from ringrift.learning.ratings import Rating, rate
from ringrift.learning.records import Model, ModelState
from ringrift.learning.state import ConfigState

UNUSED_S_MAX = 7 * 24 * 3600.0
WEAK_RATING, WEAK_GAMES_MIN = 1400.0, 100
FORMER_CHAMPIONS_KEPT = 5  # a rollback may need them
CHECKPOINTS_COUNTED_ON = 12  # of the newest models; nodes keep 16, and those of champions

_LOST = frozenset({ModelState.REJECTED, ModelState.ROLLED_BACK})


def not_needed(state: ConfigState, now_s: float) -> list[tuple[str, str]]:
    """The models that nothing needs any more, with the reason; the plan puts them away."""
    found: list[tuple[str, str]] = []
    kept: set[str] | None = None
    for model in state.models.values():
        if model.state is ModelState.SUPERSEDED:
            reason = "superseded, and more champions back than a rollback goes"
        elif model.state in _LOST and now_s - last_change_s(model) > UNUSED_S_MAX:
            reason = "not in use for seven days"
        else:
            continue
        kept = _still_needed(state) if kept is None else kept
        if model.digest not in kept:
            found.append((model.digest, reason))
    return found


def too_weak(state: ConfigState, *, ratings: Mapping[str, Rating] | None = None) -> list[tuple[str, str]]:
    """Lost models far below the champion, with the reason. *ratings* saves computing them again."""
    if state.champion is None:
        return []
    games, kept = _games(state), _still_needed(state)
    weak = [
        model
        for model in state.models.values()
        if model.state in _LOST and games[model.digest] >= WEAK_GAMES_MIN
    ]
    if not weak:
        return []
    known = rate(state.trusted_matches()) if ratings is None else ratings
    return list(_weak(weak, state.champion, known, kept).items())


def kept_checkpoint(state: ConfigState, model: Model) -> str:
    """The checkpoint to train on from *model* with; empty if there is none any more, or it was not found."""
    if not model.checkpoint or model.checkpoint in state.bad_checkpoints:
        return ""
    newest = islice(reversed(state.models.values()), CHECKPOINTS_COUNTED_ON)
    is_kept = any(each is model for each in newest) or model.digest in last_champions(state)
    return model.checkpoint if is_kept else ""


def last_change_s(model: Model) -> float:
    return model.history[-1][0] if model.history else model.made_s


def _still_needed(state: ConfigState) -> set[str]:
    """The newest model is the parent of the next; the last champions are where a rollback leads."""
    newest = state.newest_model
    return {*last_champions(state), *(() if newest is None else (newest.digest,))}


def last_champions(state: ConfigState) -> list[str]:
    """The champion, then those before it, as many as a rollback may need."""
    former = [change.model for change in reversed(state.promotions) if change.model != state.champion]
    champion = [] if state.champion is None else [state.champion]
    return champion + list(dict.fromkeys(former))[:FORMER_CHAMPIONS_KEPT]


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
