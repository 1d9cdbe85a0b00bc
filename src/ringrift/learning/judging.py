"""The stage that judges: a candidate against the champion, the champion against its predecessor, ratings."""

from __future__ import annotations

from ringrift.learning import promotion
from ringrift.learning.facts import Promoted, Rejected, RolledBack, Staged
from ringrift.learning.orders import RATING, evaluate_order
from ringrift.learning.recall import distrusted_models, is_recalled_model, previous_champion, shaken_since
from ringrift.learning.records import Model, ModelState
from ringrift.learning.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.learning.state import ConfigState
from ringrift.learning.wanted import rechecked_since, wanted_games

OPEN = (ModelState.EVALUATING, ModelState.STAGING)


def open_candidate(state: ConfigState) -> Model | None:
    """The newest model that is neither accepted nor refused."""
    newest = state.newest_model
    return newest if newest is not None and newest.state in OPEN else None


def plan_judgement(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Judge the candidate, then watch the champion, then rate it."""
    candidate = open_candidate(snapshot.state)
    running = is_running(snapshot, made, "evaluate")
    if candidate is not None:
        if not _doubts_first(snapshot, made, running=running):
            _judge(snapshot, made, candidate, running=running)
    elif snapshot.state.champion is not None:
        _watch(snapshot, made, running=running)
    elif not running:
        made.say("evaluate", "there is no model yet")


def _doubts_first(snapshot: Snapshot, made: ConfigPlan, *, running: bool) -> bool:
    """Settle a doubt about the champion first where candidates are accepted without beating it.

    Each would take its place before the test ends, and nothing would ever be taken back.
    """
    if snapshot.rules.promotion.mode is not promotion.Mode.ALWAYS_ACCEPT:
        return False
    found = _second_look(snapshot)
    seen = None if found is None else found.evidence[promotion.ROLLBACK]
    if found is None or not seen or not seen["games"] or seen["llr"] >= 0:
        return False
    return _act_on_doubt(snapshot, made, found, running=running)


def _judge(snapshot: Snapshot, made: ConfigPlan, candidate: Model, *, running: bool) -> None:
    state, rules = snapshot.state, snapshot.rules
    if candidate.digest in distrusted_models(state, with_tainted=rules.recalled_models == "take_back"):
        recalled = is_recalled_model(state, candidate.digest)
        reason = "recalled" if recalled else "it learned from recalled games"
        fact = Rejected(at_s=snapshot.now_s, model=candidate.digest, gate="recall", reason=reason)
        made.decided.append(fact)
        return
    found = promotion.judge(
        candidate.digest,
        state.champion,
        state.trusted_matches(),
        rules=rules.promotion,
        untrained=f"untrained:{rules.preset}@{rules.evaluation_simulations}",
    )
    decided = _verdict(snapshot, candidate, found)
    if decided is not None:
        made.decided.append(decided)
    elif not running:
        order = evaluate_order(
            state, rules, candidate, [found.opponent], games=found.games, purpose=promotion.PROMOTION
        )
        made.want("evaluate", order, f"model {candidate.number}: {found.reason}")


def _verdict(
    snapshot: Snapshot, candidate: Model, found: promotion.PromotionJudgement
) -> Promoted | Rejected | Staged | None:
    """What *found* decides about the candidate; None while it only asks for games."""
    at_s, model, evidence = snapshot.now_s, candidate.digest, found.evidence
    if found.verdict is promotion.PromotionVerdict.PROMOTE:
        previous = snapshot.state.champion
        return Promoted(at_s=at_s, model=model, previous=previous, reason=found.reason, evidence=evidence)
    if found.verdict is promotion.PromotionVerdict.REJECT:
        return Rejected(at_s=at_s, model=model, gate=found.gate, reason=found.reason, evidence=evidence)
    # More than one gate in the evidence: those before the last were passed.
    passed = found.gate == promotion.FLOOR and len(evidence) > 1
    if passed and candidate.state is ModelState.EVALUATING:
        reason = f"only the floor is open: {found.reason}"
        return Staged(at_s=at_s, model=model, reason=reason, evidence=evidence)
    return None


def _watch(snapshot: Snapshot, made: ConfigPlan, *, running: bool) -> None:
    """Play the champion against its predecessor again; what later evidence turns is taken back."""
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    found = _second_look(snapshot)
    if found is not None and _act_on_doubt(snapshot, made, found, running=running):
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
    _rate(snapshot, made, state.models[state.champion])


def _second_look(snapshot: Snapshot) -> promotion.PromotionJudgement | None:
    """What the games since the promotion say of the champion; None if it has no predecessor to lose to."""
    state = snapshot.state
    previous = None if state.champion is None else previous_champion(state)
    if state.champion is None or previous is None:
        return None
    return promotion.judge_rollback(
        state.champion,
        previous,
        state.trusted_matches(),
        rules=snapshot.rules.promotion,
        since_s=_looked_at_since(snapshot),
    )


def _act_on_doubt(
    snapshot: Snapshot, made: ConfigPlan, found: promotion.PromotionJudgement, *, running: bool
) -> bool:
    """Take the champion back, or play on where that is to be found out; whether the stage is busy with it."""
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    if found.verdict is promotion.PromotionVerdict.ROLL_BACK:
        made.decided.append(
            RolledBack(
                at_s=snapshot.now_s,
                model=state.champion,
                restored=previous_champion(state),
                reason=found.reason,
                evidence=found.evidence,
            )
        )
        return True
    if found.verdict is not promotion.PromotionVerdict.MORE_GAMES or not _doubtful(snapshot, found):
        return False
    if not running:
        champion, purpose = state.models[state.champion], promotion.ROLLBACK
        order = evaluate_order(state, rules, champion, [found.opponent], games=found.games, purpose=purpose)
        made.want("evaluate", order, found.reason)
    return True


def _doubtful(snapshot: Snapshot, found: promotion.PromotionJudgement) -> bool:
    """Look once after a promotion; look on only where the games so far speak against the champion."""
    seen = found.evidence[promotion.ROLLBACK]
    matches = snapshot.state.matches
    newest_s = max((m.at_s for m in matches if m.purpose == promotion.ROLLBACK), default=0.0)
    return not seen["games"] or seen["llr"] < 0 or _looked_at_since(snapshot) > newest_s


def _looked_at_since(snapshot: Snapshot) -> float:
    """From when on games count for the second look: somebody asked for it, or evidence was recalled.

    A time to come was written by a clock that has been put back, and counts when it has come: games played
    until then would never be later than it.
    """
    state, now_s = snapshot.state, snapshot.now_s
    assert state.champion is not None
    asked = (rechecked_since(state, state.champion), shaken_since(state, state.champion))
    return max((at_s for at_s in asked if at_s <= now_s), default=0.0)


def _rate(snapshot: Snapshot, made: ConfigPlan, champion: Model) -> None:
    state, rules = snapshot.state, snapshot.rules
    played = {(match.first, match.second) for match in state.trusted_matches()}
    missing = [name for name in rules.rating_opponents if (champion.digest, name) not in played]
    if missing:
        order = evaluate_order(state, rules, champion, missing, games=rules.rating_games, purpose=RATING)
        made.want("evaluate", order, f"rate the champion against {', '.join(missing)}")
        return
    met = {first for first, _ in played}
    for student in state.students.values():
        if student.state is ModelState.PRODUCTION and student.digest not in met:
            against = [champion.digest]
            order = evaluate_order(state, rules, student, against, games=rules.rating_games, purpose=RATING)
            made.want("evaluate", order, f"rate the student ({student.purpose}) against the champion")
            return
    made.say("evaluate", "the champion is rated and no candidate waits")
