"""Periodic games between the last champions, so that their ratings hang together.

Promotion matches link a champion to the one before it and no further, and the doubt adds up along the chain.
In a round-robin tournament every pair of the last few meets; the results count for ratings only.
"""

from __future__ import annotations

from ringrift.learning.judging import why_judging_waits
from ringrift.learning.orders import tournament_order
from ringrift.learning.recall import is_recalled_model
from ringrift.learning.records import Model, ModelState
from ringrift.learning.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.learning.state import ConfigState

STAGE = "tournament"
CHAMPIONS_MIN = 3  # of two, the promotion has told


def plan_tournament(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Let the last champions meet, every few hours and only if there is a new one among them."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.tournament_every_s or is_running(snapshot, made, STAGE):
        return
    models = last_champions(state, rules.tournament_champions)
    if len(models) < CHAMPIONS_MIN:
        made.say(STAGE, f"{len(models)} of the {CHAMPIONS_MIN} champions that it takes are there")
        return
    last = state.last_done.get(STAGE)
    if last is not None and models[-1].digest in last.order.inputs.values():
        made.say(STAGE, "the champion has met the ones before it")
        return
    due_s = rules.tournament_every_s + (state.first_s if last is None else last.at_s)
    if snapshot.now_s < due_s:
        made.say(STAGE, f"the last {len(models)} champions meet later", until_s=due_s)
        return
    if waits := why_judging_waits(snapshot):
        made.say(STAGE, f"the last {len(models)} champions meet later: {waits}")
        return
    made.want(STAGE, tournament_order(state, rules, models), f"the last {len(models)} champions meet")


def last_champions(state: ConfigState, count: int) -> list[Model]:
    """The champion and those before it that nobody took back, oldest first; none without a champion."""
    if state.champion is None:
        return []
    earlier = dict.fromkeys(change.model for change in state.promotions if change.model != state.champion)
    found = [
        state.models[digest]
        for digest in earlier
        if state.models[digest].state is not ModelState.ROLLED_BACK and not is_recalled_model(state, digest)
    ]
    return [*found, state.models[state.champion]][-count:]
