"""A recall and what it touches, in words and tables."""

from __future__ import annotations

from typing import Any

import msgspec

from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import NOTHING, brief, clock, count
from ringrift.learning.facts import Recalled
from ringrift.learning.recall import RecallEffect, TouchedModel

SHARDS_SHOWN = 20
HOW = {
    "recalled": "is recalled itself",
    "trained": "was trained on these games",
    "descends": "descends from such a model",
}


def covered_in_words(recall: Recalled) -> str:
    parts = []
    if recall.worker is not None:
        parts.append(f"brought by {recall.worker}")
    if recall.model is not None:
        parts.append(f"played by model {brief(recall.model)}")
    if recall.from_s is not None:
        parts.append(f"from {clock(recall.from_s, with_date=True)} on")
    if recall.until_s is not None:
        parts.append(f"before {clock(recall.until_s, with_date=True)}")
    return "games " + ", ".join(parts)


def effect_as_json(effect: RecallEffect) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(effect)
    return {**told, "games": effect.games, "rows": effect.rows}


def print_effect(effect: RecallEffect) -> None:
    """One config: games by shard, matches, models, the champion."""
    say = console().print
    if effect.is_empty:
        say(f"{effect.config}: none of its games so far", markup=False)
        return
    played = sum(match.games for match in effect.matches)
    say(
        f"{effect.config}: {count(effect.games)} games with {count(effect.rows)} rows "
        f"in {len(effect.shards)} shards, {played} games of {len(effect.matches)} matches",
        markup=False,
    )
    if effect.shards:
        _print_shards(effect)
    if effect.models:
        rows = [_model_row(model) for model in effect.models]
        print_table("  Models", ("  model", "digest", "state", "how", "rows of these"), rows)
    for model in effect.promotions:
        say(f"  The promotion of {brief(model)} stands on games among them.", markup=False)
    if effect.champion_is == "recalled":
        say("  The champion is recalled: its predecessor takes its place.")
    elif effect.champion_is and effect.successor is None:
        say(f"  The champion {HOW[effect.champion_is]}; it stays, for there is none before it without them.")
    elif effect.champion_is:
        then = f"{brief(effect.successor)} takes its place (unless recalled_models is list)"
        say(f"  The champion {HOW[effect.champion_is]}: {then}.", markup=False)
    say("")


def _print_shards(effect: RecallEffect) -> None:
    rows = [
        (
            f"  {brief(shard.shard)}",
            shard.worker,
            brief(shard.model) if shard.model else NOTHING,
            clock(shard.made_s, with_date=True),
            shard.state,
            count(shard.games),
            count(shard.rows),
        )
        for shard in effect.shards[:SHARDS_SHOWN]
    ]
    print_table("  Shards", ("  shard", "worker", "model", "made", "state", "games", "rows"), rows)
    if len(effect.shards) > SHARDS_SHOWN:
        console().print(f"  and {len(effect.shards) - SHARDS_SHOWN} more; --json lists all")


def _model_row(model: TouchedModel) -> tuple[str, ...]:
    star = " *" if model.is_champion else ""
    return (f"  {model.number}{star}", brief(model.model), model.state, HOW[model.how], count(model.rows))
