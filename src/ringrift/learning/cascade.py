"""Where the first network of a config may begin: with the champion of another config of the run.

More players on the same board follow those with one less (square8_3p follows square8_2p), and the settings
may name others. Whatever of the two networks has the same shape is taken over; the job says how much that
was. Which champion it is becomes a note among the facts of the config that follows, so its decisions replay.
"""

from __future__ import annotations

import msgspec

from ringrift.decoding import convert_to
from ringrift.learning.facts import AnyFact, Blocked, Noted
from ringrift.learning.rules import CascadeRules
from ringrift.learning.run_status import Curve
from ringrift.learning.state import ConfigState
from ringrift.work.scheduling_budget import board_and_players

TOPIC = "warm_start"


class CascadeStart(msgspec.Struct, frozen=True, kw_only=True):
    """A model of another config to begin with."""

    config: str
    model: str
    card: str


class CascadeSource(msgspec.Struct, frozen=True, kw_only=True):
    """The config that is followed, as far as it has come."""

    config: str
    champion: str | None = None
    card: str = ""
    rating: float | None = None


def source_name(config: str, rules: CascadeRules) -> str | None:
    """Whom *config* follows; None if it begins from nothing."""
    if not rules.enabled:
        return None
    board, players = board_and_players(config)
    fewer = f"{board}_{players - 1}p" if players > 2 else None
    return rules.sources.get(config, fewer)


def source_of(state: ConfigState, curve: tuple[Curve, ...]) -> CascadeSource:
    if state.champion is None:
        return CascadeSource(config=state.config)
    rating = next((point.rating for point in reversed(curve) if point.model == state.champion), None)
    card = state.models[state.champion].card
    return CascadeSource(config=state.config, champion=state.champion, card=card, rating=rating)


def decided_by_cascade(
    state: ConfigState, source: CascadeSource | None, rules: CascadeRules, now_s: float
) -> list[AnyFact]:
    """What follows for a config without a network from how far its *source* has come."""
    if source is None or state.models or state.newest_note(TOPIC) is not None or state.open_of("train"):
        return []
    block = state.blocks.get("train")
    waits = block is not None and block.holds(now_s)
    if source.champion is not None and (source.rating or 0.0) >= rules.rating:
        text = f"the first network begins with the champion of {source.config}, rated {source.rating:.0f}"
        found = CascadeStart(config=source.config, model=source.champion, card=source.card)
        note = Noted(at_s=now_s, topic=TOPIC, text=text, details=msgspec.to_builtins(found))
        over = Blocked(at_s=now_s, stage="train", reason=f"{source.config} is strong enough", until_s=now_s)
        return [note, over] if waits else [note]
    until_s = state.first_s + rules.wait_s
    if waits or now_s >= until_s:
        return []
    at = "has no rating yet" if source.rating is None else f"is at {source.rating:.0f}"
    reason = (
        f"{source.config} {at}; from {rules.rating:.0f} on its champion is what the first network begins with"
    )
    return [Blocked(at_s=now_s, stage="train", reason=reason, until_s=until_s)]


def warm_start(state: ConfigState) -> CascadeStart | None:
    """What the first network begins with; None: nothing."""
    note = state.newest_note(TOPIC)
    return None if note is None else convert_to(note.details, CascadeStart)
