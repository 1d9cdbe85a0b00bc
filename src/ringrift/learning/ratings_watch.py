"""What is worth telling of new ratings: a pure comparison of now with what was told before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringrift.learning.announcement_scene import RATING_START
from ringrift.learning.ratings import Rating, is_baseline, rate
from ringrift.learning.run_status import Curve
from ringrift.learning.signals_face import Told
from ringrift.learning.state import ConfigState
from ringrift.learning.trends_windows import fit_line

UPDATE_POINTS_MIN = 1.0  # a rating that moved less says nothing new
SIGNIFICANT_POINTS = 25.0
UPDATES_AT_ONCE = 20
VELOCITY_WINDOW_S = 48 * 3600.0
VELOCITY_POINTS_MIN = 3
VELOCITY_STEP = 0.2  # share by which it must change to be told again
STEADY_PER_H = 1.0
HOUR_S = 3600.0
_SIGNIFICANT = "ELO_SIGNIFICANT_CHANGE"


@dataclass(frozen=True, slots=True)
class ToldRatings:
    """What others know of one config."""

    matches: int = 0
    ratings: Mapping[str, float] = field(default_factory=dict)
    champion: str | None = None
    significant: float | None = None  # the champion's rating when a change was last called significant
    velocity: float | None = None


def look(
    before: ToldRatings | None, state: ConfigState, curve: Sequence[Curve]
) -> tuple[ToldRatings, list[Told]]:
    """What is known now, and what to tell. The first look learns and tells nothing: it is no change."""
    count = sum(not match.recalled for match in state.matches)
    if before is not None and count == before.matches and state.champion == before.champion:
        return before, []
    ratings = rate(state.matches)
    values = {name: each.rating for name, each in ratings.items() if not is_baseline(name)}
    mine = None if state.champion is None else values.get(state.champion)
    now_velocity = velocity(curve)
    if before is None:
        return ToldRatings(count, values, state.champion, mine, now_velocity), []
    told = [*_updates(before, state.config, ratings), *_significant(before, state, mine)]
    changed = _velocity_changed(before, state.config, now_velocity)
    significant = (
        mine if before.significant is None or any(n == _SIGNIFICANT for n, _ in told) else before.significant
    )
    known = now_velocity if changed or before.velocity is None else before.velocity
    return ToldRatings(count, values, state.champion, significant, known), [*told, *changed]


def velocity(curve: Sequence[Curve]) -> float | None:
    """Points per hour of the last champions; None for too few of them."""
    if not curve:
        return None
    window = [point for point in curve if point.at_s >= curve[-1].at_s - VELOCITY_WINDOW_S]
    if len(window) < VELOCITY_POINTS_MIN:
        return None
    line = fit_line([point.at_s for point in window], [point.rating for point in window])
    return None if line is None else line.slope * HOUR_S


def trend_of(per_h: float) -> str:
    if abs(per_h) < STEADY_PER_H:
        return "plateau"
    return "improving" if per_h > 0 else "declining"


def _updates(before: ToldRatings, config: str, ratings: Mapping[str, Rating]) -> list[Told]:
    """The largest changes first; who was not rated before starts where everybody starts."""
    changes = []
    for name, rating in ratings.items():
        if is_baseline(name):
            continue
        old = before.ratings.get(name, RATING_START)
        if name not in before.ratings or abs(rating.rating - old) >= UPDATE_POINTS_MIN:
            changes.append((abs(rating.rating - old), name, old, rating))
    told: list[Told] = []
    for _, name, old, rating in sorted(changes, key=lambda each: (-each[0], each[1]))[:UPDATES_AT_ONCE]:
        payload = {
            "config_key": config,
            "model_id": name,
            "new_elo": rating.rating,
            "old_elo": old,
            "elo_delta": rating.rating - old,
            "games_played": rating.games,
        }
        told.append(("ELO_UPDATED", payload))
    return told


def _significant(before: ToldRatings, state: ConfigState, mine: float | None) -> list[Told]:
    """The strength of a config is its champion's; a step of it is told once."""
    if mine is None or before.significant is None or state.champion is None:
        return []
    delta = mine - before.significant
    if abs(delta) < SIGNIFICANT_POINTS:
        return []
    payload = {
        "config_key": state.config,
        "model_id": state.champion,
        "elo_delta": delta,
        "new_elo": mine,
        "old_elo": before.significant,
        "threshold": SIGNIFICANT_POINTS,
    }
    return [(_SIGNIFICANT, payload)]


def _velocity_changed(before: ToldRatings, config: str, now: float | None) -> list[Told]:
    if now is None:
        return []
    old = before.velocity or 0.0
    enough = abs(now - old) >= max(STEADY_PER_H, VELOCITY_STEP * abs(old))
    if before.velocity is not None and trend_of(now) == trend_of(old) and not enough:
        return []
    change = {"velocity": now, "previous_velocity": old, "velocity_change": now - old, "trend": trend_of(now)}
    return [("ELO_VELOCITY_CHANGED", {"config_key": config, **change})]
