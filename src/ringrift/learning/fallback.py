"""What to go on with when the newest model or data is missing, damaged or old: the last good one.

Going on with something older is better than standing still, and worse than the newest: every step back says
what is missing, and is taken back as soon as the newest is there again. A training whose games are old waits
for newer ones, played here or brought by a sync; while STALE_FALLBACK runs, for 15 minutes at most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ringrift.learning.facts import FRESHNESS_TOPIC, Noted
from ringrift.learning.freshness_view import freshness_of
from ringrift.learning.records import Model, ModelState, Samples
from ringrift.learning.stages import STALE_FALLBACK, stop_of
from ringrift.learning.state import CLOCK_TOLERANCE_S, ConfigState
from ringrift.work.freshness_rules import GAMES_MIN

TIERS_S = (900.0, 1800.0, 2700.0)
TIERS_FAILURES = (2, 4, 6)
_UNFIT = frozenset({ModelState.ROLLED_BACK, ModelState.REJECTED})


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is used instead of what, and why; *use* is None when nothing good is left."""

    wanted: str | None
    use: str | None
    reason: str

    @property
    def needed(self) -> bool:
        return self.use != self.wanted


def good_model(state: ConfigState, missing: Collection[str] = ()) -> Fallback:
    """The champion, or the newest earlier one that is there and was neither taken back nor recalled."""
    champion = state.champion
    if champion is None:
        return Fallback(None, None, "there is no champion yet")
    if _is_good(state.models[champion], state, missing):
        return Fallback(champion, champion, "the champion is there")
    why = f"the champion {champion[:12]} is {'missing' if champion in missing else 'not to be trusted'}"
    for change in reversed(state.promotions):
        for digest in (change.model, change.previous):
            if digest is not None and digest != champion and _is_good(state.models[digest], state, missing):
                return Fallback(champion, digest, f"{why}; {digest[:12]} was champion before it")
    return Fallback(champion, None, f"{why}; games are played without a network until it is back")


def good_samples(state: ConfigState, missing: Collection[str] = ()) -> Fallback:
    """The newest samples, or the newest older ones that are there and hold no recalled shard."""
    newest = state.newest_samples
    if newest is None:
        return Fallback(None, None, "nothing was exported yet")
    if _are_good(newest, state, missing):
        return Fallback(newest.digest, newest.digest, "the newest samples are there")
    why = f"the samples {newest.digest[:12]} are {'missing' if newest.digest in missing else 'recalled'}"
    for samples in reversed(state.samples.values()):
        if _are_good(samples, state, missing):
            text = f"{why}; older ones with {samples.rows:,} rows are used"
            return Fallback(newest.digest, samples.digest, text)
    return Fallback(newest.digest, None, f"{why}; the window has to be exported again")


def fallback_tier(*, failures: int, waited_s: float) -> int:
    """How far to step back, 0 to 3: by failures in a row or by how long the newest is waited for."""
    by_failures = sum(failures >= limit for limit in TIERS_FAILURES)
    by_time = sum(waited_s >= limit for limit in TIERS_S)
    return max(by_failures, by_time)


@dataclass(frozen=True, slots=True)
class DataWait:
    """A training waits for newer games; None: until they are there."""

    reason: str
    until_s: float | None


def data_wait(state: ConfigState, *, now_s: float) -> DataWait | None:
    """Why a training waits for newer games; None if they are fresh, or were waited for long enough.

    Of a config that has few games, all of them have to be fresh: none is held up for having few.
    """
    found = freshness_of(state, now_s=now_s, games_min=min(GAMES_MIN, state.games))
    if found.is_fresh:
        return None
    why = f"waits for newer games, played or brought by a sync: {found.reason}"
    if (stopped := stop_of(state, STALE_FALLBACK)) is not None:
        return DataWait(f"{why}; it would go on without them, but {stopped.reason}", None)
    since_s = stale_since_s(state)
    if since_s is None or now_s < since_s - CLOCK_TOLERANCE_S:
        since_s = now_s
    if fallback_tier(failures=0, waited_s=now_s - since_s) > 0:
        return None
    text = f"{why}; after {TIERS_S[0] / 60:.0f} minutes it goes on with what is there"
    return DataWait(text, since_s + TIERS_S[0])


def stale_since_s(state: ConfigState) -> float | None:
    """Since when a training has waited for newer games, as was noted; None if none does."""
    note = state.newest_note(FRESHNESS_TOPIC)
    return note.at_s if note is not None and note.details.get("stale") is True else None


def freshness_note(state: ConfigState, *, is_due: bool, now_s: float) -> Noted | None:
    """What to note when a training, if one *is_due*, begins or ends to wait; None if that was noted."""
    since_s = stale_since_s(state)
    if since_s is None and not is_due:
        return None  # nobody asks
    found = freshness_of(state, now_s=now_s, games_min=min(GAMES_MIN, state.games))
    if found.is_fresh == (since_s is None):
        return None
    text = f"the games are {'fresh again' if found.is_fresh else 'old'}: {found.reason}"
    details = {"stale": not found.is_fresh, "age_s": found.age_s, "games": found.games}
    return Noted(at_s=now_s, topic=FRESHNESS_TOPIC, text=text, details=details)


def _is_good(model: Model, state: ConfigState, missing: Collection[str]) -> bool:
    recalled = any(each.model == model.digest and not each.withdrawn for each in state.recalls.values())
    return model.digest not in missing and model.state not in _UNFIT and not recalled


def _are_good(samples: Samples, state: ConfigState, missing: Collection[str]) -> bool:
    recalled = state.trust_before_recall.keys() & set(samples.shards)
    return not recalled and samples.digest not in missing and samples.digest not in state.unfit_samples
