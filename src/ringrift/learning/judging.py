"""The stage that judges: a candidate against the champion, the champion against its predecessor, ratings."""

from __future__ import annotations

from ringrift.learning import promotion
from ringrift.learning.facts import Promoted, Rejected, RolledBack
from ringrift.learning.orders import evaluate_order
from ringrift.learning.recall import is_recalled_model, previous_champion
from ringrift.learning.records import Model, ModelState
from ringrift.learning.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.learning.state import ConfigState
from ringrift.learning.wanted import rechecked_since, wanted_games


def open_candidate(state: ConfigState) -> Model | None:
    """The newest model that is neither accepted nor refused."""
    newest = state.newest_model
    return newest if newest is not None and newest.state is ModelState.EVALUATING else None


def plan_judgement(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Judge the candidate, then watch the champion, then rate it."""
    candidate = open_candidate(snapshot.state)
    running = is_running(snapshot, made, "evaluate")
    if candidate is not None:
        _judge(snapshot, made, candidate, running=running)
    elif snapshot.state.champion is not None:
        _watch(snapshot, made, running=running)
    elif not running:
        made.say("evaluate", "there is no model yet")


def _judge(snapshot: Snapshot, made: ConfigPlan, candidate: Model, *, running: bool) -> None:
    state, rules = snapshot.state, snapshot.rules
    if is_recalled_model(state, candidate.digest):
        fact = Rejected(at_s=snapshot.now_s, model=candidate.digest, gate="recall", reason="recalled")
        made.decided.append(fact)
        return
    found = promotion.judge(
        candidate.digest,
        state.champion,
        state.trusted_matches(),
        rules=rules.promotion,
        untrained=f"untrained:{rules.preset}@{rules.evaluation_simulations}",
    )
    if found.verdict is promotion.PromotionVerdict.PROMOTE:
        made.decided.append(
            Promoted(
                at_s=snapshot.now_s,
                model=candidate.digest,
                previous=state.champion,
                reason=found.reason,
                evidence=found.evidence,
            )
        )
    elif found.verdict is promotion.PromotionVerdict.REJECT:
        made.decided.append(
            Rejected(
                at_s=snapshot.now_s,
                model=candidate.digest,
                gate=found.gate,
                reason=found.reason,
                evidence=found.evidence,
            )
        )
    elif not running:
        order = evaluate_order(
            state, rules, candidate, [found.opponent], games=found.games, purpose=promotion.PROMOTION
        )
        made.want("evaluate", order, f"model {candidate.number}: {found.reason}")


def _watch(snapshot: Snapshot, made: ConfigPlan, *, running: bool) -> None:
    """Play the champion against its predecessor again; what later evidence turns is taken back."""
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    champion, previous = state.models[state.champion], previous_champion(state)
    if previous is not None:
        found = promotion.judge_rollback(
            champion.digest,
            previous,
            state.trusted_matches(),
            rules=rules.promotion,
            since_s=rechecked_since(state, champion.digest),
        )
        if found.verdict is promotion.PromotionVerdict.ROLL_BACK:
            made.decided.append(
                RolledBack(
                    at_s=snapshot.now_s,
                    model=champion.digest,
                    restored=previous,
                    reason=found.reason,
                    evidence=found.evidence,
                )
            )
            return
        if found.verdict is promotion.PromotionVerdict.MORE_GAMES and not running and _doubtful(state, found):
            order = evaluate_order(
                state,
                rules,
                champion,
                [previous],
                games=found.games,
                purpose=promotion.ROLLBACK,
            )
            made.want("evaluate", order, found.reason)
            return
    if running:
        return
    for wish in wanted_games(state, snapshot.now_s):
        games = min(wish.games, rules.evaluation_games)
        order = evaluate_order(
            state, rules, state.models[wish.model], [wish.opponent], games=games, purpose=wish.purpose
        )
        made.want("evaluate", order, f"asked for: {wish.reason}")
        return
    _rate(snapshot, made, champion)


def _doubtful(state: ConfigState, found: promotion.PromotionJudgement) -> bool:
    """Look once after a promotion; look on only where the games so far speak against the champion."""
    assert state.champion is not None
    seen = found.evidence[promotion.ROLLBACK]
    asked_s = rechecked_since(state, state.champion)
    newest_s = max((m.at_s for m in state.matches if m.purpose == promotion.ROLLBACK), default=0.0)
    return not seen["games"] or seen["llr"] < 0 or asked_s > newest_s


def _rate(snapshot: Snapshot, made: ConfigPlan, champion: Model) -> None:
    state, rules = snapshot.state, snapshot.rules
    played = {match.second for match in state.trusted_matches() if match.first == champion.digest}
    missing = [name for name in rules.rating_opponents if name not in played]
    if not missing:
        made.say("evaluate", "the champion is rated and no candidate waits")
        return
    order = evaluate_order(state, rules, champion, missing, games=rules.rating_games, purpose="rating")
    made.want("evaluate", order, f"rate the champion against {', '.join(missing)}")
