"""What is told when a model was accepted, refused or taken back."""

from __future__ import annotations

from typing import Any

from ringrift.learning.announcement_scene import Announcement, Scene, blob_path
from ringrift.learning.facts import Promoted, Rejected, RolledBack, Staged
from ringrift.learning.records import ModelState

# Ratings at which a config enters a tier of the documents.
TIERS = ((2000.0, "elite"), (1800.0, "expert"), (1650.0, "production"), (1500.0, "advanced"))
TIERS_LOW = ((1200.0, "heuristic"), (800.0, "novice"))
_UNRANKED = "unranked"


def tier_of(rating: float) -> str:
    return next((name for at_least, name in (*TIERS, *TIERS_LOW) if rating >= at_least), _UNRANKED)


def staged(scene: Scene, fact: Staged) -> list[Announcement]:
    return [_candidate(scene, fact.model)]


def promoted(scene: Scene, fact: Promoted) -> list[Announcement]:
    config, model = scene.config, fact.model
    about = {"config_key": config, "model_id": model}
    elo = scene.rating(model)
    change = {**about, "model_path": blob_path(model), "elo": elo, "reason": fact.reason}
    if fact.previous is not None:
        before = scene.rating(fact.previous)
        change |= {"previous_elo": before, "elo_gain": elo - before, "supersedes": fact.previous}
    was = {state for _, state, _ in scene.state.models[model].history}
    told = [
        *_verdict(scene, model, passed=True),
        *([] if ModelState.STAGING in was else [_candidate(scene, model)]),
        ("PROMOTION_STARTED", about),
        ("MODEL_PROMOTED", change),
    ]
    old = _UNRANKED if fact.previous is None else tier_of(scene.rating(fact.previous))
    if (new := tier_of(elo)) != old and model in scene.ratings:
        told.append(("TIER_PROMOTION", {**about, "old_tier": old, "new_tier": new, "elo": elo}))
    return [*told, _iteration(scene, model, was_promoted=True)]


def rejected(scene: Scene, fact: Rejected) -> list[Announcement]:
    refused: dict[str, Any] = {"model_id": fact.model, "reason": fact.reason, "gate": fact.gate}
    if scene.state.champion is not None:
        refused["elo_improvement"] = scene.rating(fact.model) - scene.champion_rating()
    return [
        *_verdict(scene, fact.model, passed=False),
        ("PROMOTION_REJECTED", {"config_key": scene.config, **refused}),
        _iteration(scene, fact.model, was_promoted=False),
    ]


def rolled_back(scene: Scene, fact: RolledBack) -> list[Announcement]:
    back = {
        "config_key": scene.config,
        "from_model_id": fact.model,
        "to_model_id": fact.restored or "",
        "reason": fact.reason,
        "triggered_by": "later evidence",
    }
    return [("PROMOTION_ROLLED_BACK", back)]


def _verdict(scene: Scene, model: str, *, passed: bool) -> list[Announcement]:
    """A verdict without games is none, so nothing is told of one."""
    matches = scene.matches_of(model, "promotion")
    games = sum(match.games for match in matches)
    if not games:
        return []
    by_opponent: dict[str, dict[str, float]] = {}
    for match in matches:
        found = by_opponent.setdefault(match.second, {"games": 0, "wins": 0, "points": 0.0})
        found["games"] += match.games
        found["wins"] += match.wins
        found["points"] += match.score * match.games
    payload = {
        "config_key": scene.config,
        "model_id": model,
        "model_path": blob_path(model),
        "elo": scene.rating(model),
        "win_rate": sum(match.score * match.games for match in matches) / games,
        "games_played": games,
        "opponent_results": by_opponent,
        "passed": passed,
        "success": True,
    }
    for name, field in (("random", "vs_random_rate"), ("heuristic", "vs_heuristic_rate")):
        if name in by_opponent:
            payload[field] = by_opponent[name]["points"] / by_opponent[name]["games"]
    return [("EVALUATION_COMPLETED", payload)]


def _candidate(scene: Scene, model: str) -> Announcement:
    about = {"config_key": scene.config, "model_id": model, "model_path": blob_path(model)}
    return ("PROMOTION_CANDIDATE", {**about, "elo": scene.rating(model)})


def _iteration(scene: Scene, model: str, *, was_promoted: bool) -> Announcement:
    """One turn of the loop: from a model's training to the decision about it."""
    found = scene.state.models.get(model)
    turn = {"config_key": scene.config, "iteration": scene.number(model), "success": True}
    if found is not None:
        turn["duration_seconds"] = max(0.0, scene.at_s - found.made_s)
    return ("ITERATION_COMPLETED", {**turn, "metadata": {"model_id": model, "promoted": was_promoted}})
