"""Which games between players are ordered, and what they decide: candidates against the champion, the
champion against its predecessor, games that somebody asked for, tournaments of the last champions, and which
network plays the games to learn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any

import msgspec

from ringrift.learning.facts.facts import (
    Archived,
    GeneratorMoved,
    Noted,
    Promoted,
    Rejected,
    RolledBack,
    Staged,
)
from ringrift.learning.facts.records import Match, Model, ModelState
from ringrift.learning.facts.results import WEIGHTS_SUFFIX
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging import promotion
from ringrift.learning.judging.promotion import Pairing, PromotionJudgment, PromotionVerdict
from ringrift.learning.plan.orders import (
    RATING,
    ConfigPlan,
    Snapshot,
    evaluate_order,
    is_running,
    tournament_order,
)
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import MODEL_PERFORMANCE_WATCHDOG, hold_of, is_stopped
from ringrift.learning.plan.training_data import distrusted_models, is_recalled_model
from ringrift.learning.plan.trust import previous_champion, shaken_since
from ringrift.statistics.match_evidence import SequentialTest
from ringrift.work.shares import board_and_players

# Games that somebody asked for: an evaluation, a ladder, a second look at a champion.
#
# A request is a note among the facts of a config. It stays open until its games were played or its time is
# over, and the plan orders them in turns with candidates: nobody but the plan starts games.


WANTED_TOPIC = "wanted_games"
RECHECK_TOPIC = "rollback_check"
REQUEST_S_MAX = 24 * 3600.0  # a request that nobody could fulfill for a day is dropped
REQUESTS_MAX = 20
WANTED_GAMES_MAX = 1000


class WantedGames(msgspec.Struct, frozen=True, kw_only=True):
    """Games of *model* against *opponent*, of which *games* are still to be played."""

    model: str
    opponent: str
    games: int
    reason: str
    at_s: float
    purpose: str = "rating"


def request_details(model: str, opponents: Iterable[str], *, games: int) -> dict[str, Any]:
    """What a note of the topic `TOPIC` carries."""
    return {"model": model, "opponents": list(opponents), "games": min(games, WANTED_GAMES_MAX)}


def is_new_request(state: ConfigState, note: Noted, now_s: float) -> bool:
    """Whether *note* asks for games that nobody waits for yet, and not since too long."""
    known = {(each.model, each.opponent) for each in wanted_games(state, now_s)}
    asked = {(each.model, each.opponent) for each in _requests_of(note)}
    return now_s - note.at_s <= REQUEST_S_MAX and not asked <= known


def wanted_games(state: ConfigState, now_s: float, waiting: Iterable[Noted] = ()) -> list[WantedGames]:
    """The open requests, oldest first, with those of *waiting*, which are no facts yet.

    What cannot be played (an unknown model) is no request.
    """
    requests: dict[tuple[str, str], WantedGames] = {}
    for note in (*state.notes, *waiting):
        # A request of a clock that was put back since waits for its time: no game would count as its own.
        if note.topic != WANTED_TOPIC or not 0.0 <= now_s - note.at_s <= REQUEST_S_MAX:
            continue
        for request in _requests_of(note):
            if request.model in state.models and request.opponent != request.model:
                requests[request.model, request.opponent] = (
                    request  # a newer request for the same games replaces it
                )
    left = [
        msgspec.structs.replace(request, games=request.games - _played(request, state.matches))
        for request in requests.values()
    ]
    return [request for request in left if request.games > 0][:REQUESTS_MAX]


def rechecked_since(state: ConfigState, model: str) -> float:
    """Since when the champion *model* is looked at again; 0 if nobody asked."""
    return max((note.at_s for note in _rechecks(state, model)), default=0.0)


def recheck_count(state: ConfigState, model: str) -> int:
    """How often somebody asked to look at *model* again."""
    return len(_rechecks(state, model))


def _rechecks(state: ConfigState, model: str) -> list[Noted]:
    return [
        note for note in state.notes if note.topic == RECHECK_TOPIC and note.details.get("model") == model
    ]


def _requests_of(note: Noted) -> list[WantedGames]:
    details = note.details
    opponents: Sequence[Any] = details.get("opponents") or ()
    return [
        WantedGames(
            model=str(details.get("model", "")),
            opponent=str(opponent),
            games=int(details.get("games", 0)),
            reason=note.text,
            at_s=note.at_s,
        )
        for opponent in opponents
    ]


def _played(request: WantedGames, matches: Iterable[Match]) -> int:
    return sum(
        match.games
        for match in matches
        if match.at_s > request.at_s
        and not match.recalled
        and (match.first, match.second) == (request.model, request.opponent)
    )


# The stage that judges: candidates against the champion, the champion against its predecessor, ratings.
#
# Training never waits for a verdict, so several candidates may be open at once. One is judged at a time: what
# has begun goes on until it is decided, then the newest is next. A candidate gives way to a newer one
#
# - when its judgment has not begun, and that of the newer one is to begin,
# - when its judgment has begun, has not come a third of the way to a promotion after as many games as show a
#   clear gain, and a newer one waits,
# - the same, wherever on the way, where a job has time for many games and a newer one has learned much more,
# - when there is no champion yet, neither one job nor as many games as can show it showed that it holds the
#   floor, it is not far above it either, and a newer one waits,
# - when a model newer than it has become the champion.
#
# Judging takes at most a share of the processor time of its config, half of it for what can wait: candidates
# that have hardly learned more than the champion, second looks and ratings.


OPEN = (ModelState.EVALUATING, ModelState.STAGING)
JUDGING = ("evaluate", "tournament")  # kinds of jobs whose time counts
WAY_TO_GO_ON = 1 / 3  # to the upper bound: benchmarks/candidates_given_up.py shows why
FAST_GAMES = 24  # of a job; a clear gain can show in as many
GAMES_FIRST = 64  # of a candidate before it may give way: a clear gain shows within them
# What counts as the recent past: so many seconds of the slots of a config, at most so much processor time,
# never less than what two jobs need, and nothing from before GPUs came or went. Within it the share holds, so
# that other work goes on evenly.
RECENT_S, RECENT_CPU_S_MAX, RECENT_JOBS_MIN = 300.0, 1200.0, 2
AHEAD_SHARE = 0.5
JOBS_SEEN = 4  # by which it is known what the next takes
# Times the samples of the champion, and of whoever was judged since, and so many of the first trainings more:
# then a candidate is worth the whole share. With less a match takes hundreds of games and gains next to
# nothing; and the first few trainings rather unlearn what games without a network had taught.
GROWN, GROWN_TRAININGS = 1.4, 4
SPARE_SHARE = 0.5  # of the share of judging, for what can wait
MATCHES_SEEN = 20
RATINGS_SHARE = 0.25  # of the processor time of matches, for those that only rate, once a champion is rated
# Until there is a first champion its share would make the first judgment wait for an hour on a large board.
FIRST_CPU_S = 120.0


# --- candidates -------------------------------------------------------------------------------------------


def open_candidates(state: ConfigState) -> list[Model]:
    """The models that are neither accepted nor refused, newest first."""
    return [model for model in reversed(state.models.values()) if model.state in OPEN]


def under_judgment(state: ConfigState) -> Model | None:
    """Whom to judge now: who has only the floor before it, else whose judgment began, else the newest."""
    candidates = open_candidates(state)
    begun = _begun(state, candidates)
    staged = (model for model in candidates if model.state is ModelState.STAGING)
    started = (model for model in candidates if model.digest in begun)
    return next(staged, None) or next(started, None) or next(iter(candidates), None)


def waiting_for_verdict(state: ConfigState) -> int:
    """How many candidates have played for their promotion and are not decided upon.

    Those that have not may give way to a newer one, and wait for nothing.
    """
    candidates = open_candidates(state)
    begun = _begun(state, candidates)
    return sum(model.state is ModelState.STAGING or model.digest in begun for model in candidates)


def _begun(state: ConfigState, candidates: Sequence[Model]) -> set[str]:
    """Those who have played for their promotion, or do so now."""
    playing = (job for job in state.open_of("evaluate") if job.order.purpose == promotion.PROMOTION)
    found = {job.order.inputs.get(f"candidate{WEIGHTS_SUFFIX}", "") for job in playing}
    oldest_s = min((model.made_s for model in candidates), default=0.0)
    for match in reversed(state.matches):
        if match.at_s < oldest_s:
            break  # before any of them was made
        if match.purpose == promotion.PROMOTION and not match.recalled:
            found.add(match.first)
    return found


def untrained_player(rules: LearningRules) -> str:
    """Whom a first model has to beat: the network of its size before any training."""
    return f"untrained:{rules.preset}@{rules.evaluation_simulations}"


def judgment_of(snapshot: Snapshot, candidate: Model) -> PromotionJudgment:
    """How *candidate* stands, and what is still to be shown."""
    state, rules = snapshot.state, snapshot.rules
    return promotion.judge(
        candidate.digest,
        state.champion,
        state.trusted_matches(),
        rules=rules.promotion,
        untrained=untrained_player(rules),
        players=board_and_players(state.config)[1],
    )


def _older_than_the_champion(snapshot: Snapshot) -> list[Archived]:
    state = snapshot.state
    champion = None if state.champion is None else state.models[state.champion]
    if champion is None:
        return []
    reason = f"a newer model, number {champion.number}, is the champion"
    return [
        Archived(at_s=snapshot.now_s, model=model.digest, reason=reason)
        for model in open_candidates(state)
        if model.number < champion.number
    ]


def _older_and_not_begun(snapshot: Snapshot, candidate: Model) -> list[Archived]:
    reason = f"a newer candidate, model {candidate.number}, is judged instead"
    candidates = open_candidates(snapshot.state)
    begun = _begun(snapshot.state, candidates)
    return [
        Archived(at_s=snapshot.now_s, model=model.digest, reason=reason)
        for model in candidates
        if model.number < candidate.number and model.digest not in begun
    ]


def _gives_way(snapshot: Snapshot, candidate: Model, found: PromotionJudgment) -> Archived | None:
    """Not worth more games: it is no clear gain so far, and a newer one waits that has learned more since."""
    newest = open_candidates(snapshot.state)[0]
    seen = found.evidence[found.gate]
    if newest.number <= candidate.number or not seen["games"]:
        return None
    if found.gate == promotion.FLOOR:
        # It won a long match before, unless it is the first model, which only had to beat an untrained one.
        # On a large board one job has no time for the games that can show it: each would give way.
        floor = snapshot.rules.promotion.floor_test(board_and_players(snapshot.state.config)[1])
        # Far above it a few games more show it, and a newer one would have to play them all.
        is_far_above = seen["score"] >= (1 + floor.share) / 2
        if snapshot.state.champion is not None or seen["games"] < floor.games_decisive or is_far_above:
            return None
    else:
        # On a large board a job has time for a few games: each would give way after them.
        test, before = found.plays[0].test, found.plays[0].before
        assert isinstance(test, SequentialTest)
        assert before is not None
        is_far = test.way_to_pass(before) >= WAY_TO_GO_ON
        if seen["games"] < GAMES_FIRST or (is_far and not _is_outgrown(snapshot, candidate, newest)):
            return None
    reason = f"{found.reason}; a newer candidate, model {newest.number}, is judged instead"
    return Archived(at_s=snapshot.now_s, model=candidate.digest, reason=reason)


def _is_outgrown(snapshot: Snapshot, candidate: Model, newest: Model) -> bool:
    """Whether one job may show how much better *newest* is, which has learned much more."""
    state = snapshot.state
    matched = (candidate.digest, state.champion)  # a rating after it says nothing of how many a job plays
    games = next((m.games for m in reversed(state.matches) if (m.first, m.second) == matched), 0)
    has_learned_more = 0 < GROWN * candidate.rows_seen <= newest.rows_seen
    return state.champion is not None and games >= FAST_GAMES and has_learned_more


# --- the share of judging ---------------------------------------------------------------------------------


def why_judging_waits(snapshot: Snapshot, *, part: float = 1.0) -> str:
    """What keeps judging from taking more processor time now; empty if nothing does.

    What can wait has only a *part* of the share. Only the recent past counts, so that a long run without
    candidates does not pay for a burst of judging.
    """
    state, rules = snapshot.state, snapshot.rules
    if hold_of(state, now_s=snapshot.now_s) is not None:
        return ""  # what it shares the time with is held, and would never give it its turn
    next_s = _expected_s(state)
    least_s = min(RECENT_S * max(1.0, state.slots), RECENT_CPU_S_MAX)
    judged_s, total_s = recent_judging(state, max(least_s, RECENT_JOBS_MIN * next_s / rules.judging_share))
    if state.champion is None and sum(state.cpu_of.get(kind, 0.0) for kind in JUDGING) < FIRST_CPU_S:
        return ""
    # A young run judges ahead of its share, because it learns fastest then and somebody watches. That it
    # gives back over the whole of that time: all at once, its champion would be old until then.
    ahead_s = AHEAD_SHARE * max(0.0, least_s - sum(state.cpu_of.values()))
    share = rules.judging_share * part
    budget_s = share * (total_s + ahead_s)
    # While little is done at all, a job that is longer than that would never come.
    expected_s = min(next_s, budget_s / 2)
    if judged_s + expected_s <= budget_s:
        return ""
    return (
        f"judging took {judged_s:.0f} of the recent {total_s:.0f} processor seconds "
        f"({judged_s / max(total_s, 1.0):.0%}), and about {expected_s:.0f} more would pass its share of "
        f"{100 * share:.3g}%"
    )


def recent_judging(state: ConfigState, recent_s: float) -> tuple[float, float]:
    """Processor seconds of judging and of everything, of the last *recent_s*."""
    judged_s = total_s = 0.0
    for job in reversed(state.recent_jobs):
        if total_s >= recent_s or job.at_s < state.gpus_since_s:
            break
        total_s += job.cpu_s
        judged_s += job.cpu_s if job.kind in JUDGING else 0.0
    return judged_s, total_s


def _expected_s(state: ConfigState) -> float:
    """What the next job of judging takes: as much as the longest of the last few; a rating is short."""
    judged = (job for job in reversed(state.recent_jobs) if job.kind in JUDGING)
    known = takewhile(lambda job: job.at_s >= state.gpus_since_s, islice(judged, JOBS_SEEN))
    return max((job.cpu_s for job in known), default=0.0)


# --- the plan ---------------------------------------------------------------------------------------------


def plan_judgment(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Judge the candidate, watch the champion, rate it; the last two take turns with new candidates."""
    state = snapshot.state
    running = is_running(snapshot, made, "evaluate")
    if moot := _older_than_the_champion(snapshot):
        made.decided += moot
        return
    if state.champion is not None and (turned := _rolled_back(snapshot)) is not None:
        made.decided.append(turned)
        return
    if not running and _check_generator(snapshot, made):
        return
    candidate = under_judgment(state)
    if candidate is None:
        if state.champion is None:
            if not running:
                made.say("evaluate", "there is no model yet")
        elif not running and not _watch(snapshot, made):
            rated = "is rated" if _may_rate(snapshot) else "is rated later, since ratings had their part"
            made.say("evaluate", f"the champion {rated} and no candidate waits")
        return
    if _doubts_first(snapshot):
        if not running:
            _watch(snapshot, made)
        return
    _judge(snapshot, made, candidate, running=running)


def _check_generator(snapshot: Snapshot, made: ConfigPlan) -> bool:
    """Play a quick match of the newest network with what plays, if a setting asks for it; whether it does."""
    unchecked = unchecked_generator(snapshot)
    if unchecked is None:
        return False
    model, found = unchecked
    if waits := why_judging_waits(snapshot):
        made.say("evaluate", f"model {model.number} waits for its match with what plays: {waits}")
        return True
    order = evaluate_order(snapshot.state, snapshot.rules, model, found.plays, purpose=promotion.GENERATOR)
    made.want("evaluate", order, f"model {model.number}: {found.reason}")
    return True


def _doubts_first(snapshot: Snapshot) -> bool:
    """Whether a doubt about the champion is settled first, where candidates are accepted without beating it.

    Each would take its place before the test ends, and nothing would ever be taken back.
    """
    if snapshot.rules.promotion.mode is not promotion.Mode.ALWAYS_ACCEPT:
        return False
    found = _second_look(snapshot)
    if found is None or found.verdict is not PromotionVerdict.MORE_GAMES:
        return False
    seen = found.evidence[promotion.ROLLBACK]
    return bool(seen["games"]) and seen["llr"] < 0


def _judge(snapshot: Snapshot, made: ConfigPlan, candidate: Model, *, running: bool) -> None:
    state, rules = snapshot.state, snapshot.rules
    if candidate.digest in distrusted_models(state, rules):
        recalled = is_recalled_model(state, candidate.digest)
        reason = "recalled" if recalled else "it learned from recalled games"
        fact = Rejected(at_s=snapshot.now_s, model=candidate.digest, gate="recall", reason=reason)
        made.decided.append(fact)
        return
    found = judgment_of(snapshot, candidate)
    decided = _verdict(snapshot, candidate, found)
    if decided is not None:
        made.decided.append(decided)
        return
    if running:
        return
    if (dropped := _gives_way(snapshot, candidate, found)) is not None:
        made.decided.append(dropped)
        return
    begun = candidate.digest in _begun(state, [candidate])
    if not begun and _others_turn(state) and state.champion is not None and _watch(snapshot, made):
        return
    # With games that somebody asked for it takes turns: they would wait with it, or take all of the share.
    at_once = begun or _has_grown(snapshot, candidate) or bool(wanted_games(state, snapshot.now_s))
    if waits := why_judging_waits(snapshot, part=1.0 if at_once else SPARE_SHARE):
        made.say("evaluate", f"model {candidate.number} waits to be judged: {waits}")
        return
    if not begun:
        made.decided += _older_and_not_begun(snapshot, candidate)
    plays = (*found.plays, *_ratings(snapshot, candidate, found.plays))
    order = evaluate_order(state, rules, candidate, plays, purpose=promotion.PROMOTION)
    made.want("evaluate", order, f"model {candidate.number}: {found.reason}")


def _has_grown(snapshot: Snapshot, candidate: Model) -> bool:
    """Whether *candidate* has learned enough more than who was judged before to be worth the whole share."""
    state = snapshot.state
    if state.champion is None:
        return True
    champion = state.models[state.champion]
    if not champion.rows_seen or not candidate.rows_seen:
        return True  # a program of the user's does not tell
    met = {match.first for match in state.trusted_matches() if match.second == champion.digest}
    # What was given up does not count: it may have learned from more than the line that goes on.
    line = takewhile(lambda model: model is not champion, _line_of(state, candidate))
    judged = [champion.rows_seen, *(model.rows_seen for model in line if model.digest in met)]
    least = GROWN_TRAININGS * snapshot.rules.bucket.chunk_steps
    return candidate.rows_seen >= GROWN * max(judged) + least


def _line_of(state: ConfigState, model: Model) -> Iterator[Model]:
    """What *model* was trained on from, the newest first."""
    while (parent := state.models.get(model.parent or "")) is not None:
        yield parent
        model = parent


def _verdict(
    snapshot: Snapshot, candidate: Model, found: PromotionJudgment
) -> Promoted | Rejected | Staged | None:
    """What *found* decides about the candidate; None while it only asks for games."""
    at_s, model, evidence = snapshot.now_s, candidate.digest, found.evidence
    if found.verdict is PromotionVerdict.PROMOTE:
        previous = snapshot.state.champion
        return Promoted(at_s=at_s, model=model, previous=previous, reason=found.reason, evidence=evidence)
    if found.verdict is PromotionVerdict.REJECT:
        return Rejected(at_s=at_s, model=model, gate=found.gate, reason=found.reason, evidence=evidence)
    # More than one gate in the evidence: those before the last were passed.
    passed = found.gate == promotion.FLOOR and len(evidence) > 1
    if passed and candidate.state is ModelState.EVALUATING:
        reason = f"only the floor is open: {found.reason}"
        return Staged(at_s=at_s, model=model, reason=reason, evidence=evidence)
    return None


def _others_turn(state: ConfigState) -> bool:
    """Candidates come one after another: what else there is to play has its turn after each of them."""
    last = state.last_done.get("evaluate")
    return last is not None and last.order.purpose == promotion.PROMOTION


# --- the champion -----------------------------------------------------------------------------------------


def _watch(snapshot: Snapshot, made: ConfigPlan) -> bool:
    """Look at the champion again, play what somebody asked for, rate; whether there was anything to play.

    Beside candidates it can wait, unless somebody asked, or games have begun to speak against the champion.
    """
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    model, plays, purpose, reason = state.models[state.champion], tuple[Pairing, ...](), RATING, ""
    part = SPARE_SHARE if open_candidates(state) else 1.0
    looked = _second_look(snapshot)
    if looked is not None and looked.plays and _doubtful(snapshot, looked):
        plays, purpose, reason = looked.plays, promotion.ROLLBACK, looked.reason
        part = 1.0 if looked.evidence[promotion.ROLLBACK]["games"] else part
    elif asked := wanted_games(state, snapshot.now_s):
        games = min(asked[0].games, rules.evaluation_games)
        model, reason = state.models[asked[0].model], f"asked for: {asked[0].reason}"
        plays, purpose = (Pairing(asked[0].opponent, games, asked[0].purpose),), asked[0].purpose
        part = 1.0
    elif plays := _ratings(snapshot, model):
        reason = f"rate the champion against {', '.join(each.opponent for each in plays)}"
    elif (student := _unrated_student(state)) is not None:
        plays = (Pairing(model.digest, rules.rating_games, RATING),)
        model, reason = student, f"rate the student ({student.purpose}) against the champion"
    if not plays:
        return False
    if waits := why_judging_waits(snapshot, part=part):
        made.say("evaluate", f"{reason}: waits, since {waits}")
        return part == 1.0
    made.want("evaluate", evaluate_order(state, rules, model, plays, purpose=purpose), reason)
    return True


def _rolled_back(snapshot: Snapshot) -> RolledBack | None:
    """Take the champion back, if its games against its predecessor say so."""
    state, found = snapshot.state, _second_look(snapshot)
    assert state.champion is not None
    if found is None or found.verdict is not PromotionVerdict.ROLL_BACK:
        return None
    return RolledBack(
        at_s=snapshot.now_s,
        model=state.champion,
        restored=previous_champion(state),
        reason=found.reason,
        evidence=found.evidence,
    )


def _second_look(snapshot: Snapshot) -> PromotionJudgment | None:
    """What the games since the promotion say of the champion.

    None if it has no predecessor to lose to, or nobody watches it.
    """
    state = snapshot.state
    if is_stopped(state, MODEL_PERFORMANCE_WATCHDOG):
        return None
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


def _doubtful(snapshot: Snapshot, found: PromotionJudgment) -> bool:
    """Look once after a promotion; look on only where the games so far speak against the champion."""
    seen, rules = found.evidence[promotion.ROLLBACK], snapshot.rules.promotion
    once = rules.chunk(board_and_players(snapshot.state.config)[1], rules.games_max)
    matches = snapshot.state.matches
    newest_s = max((m.at_s for m in matches if m.purpose == promotion.ROLLBACK), default=0.0)
    return seen["games"] < once or seen["llr"] < 0 or _looked_at_since(snapshot) > newest_s


def _looked_at_since(snapshot: Snapshot) -> float:
    """From when on games count for the second look: somebody asked for it, or evidence was recalled.

    A time to come was written by a clock that has been put back, and counts when it has come: games played
    until then would never be later than it.
    """
    state, now_s = snapshot.state, snapshot.now_s
    assert state.champion is not None
    asked = (rechecked_since(state, state.champion), shaken_since(state, state.champion))
    return max((at_s for at_s in asked if at_s <= now_s), default=0.0)


def _ratings(snapshot: Snapshot, model: Model, before: Sequence[Pairing] = ()) -> tuple[Pairing, ...]:
    """The games that are missing of a rating, besides those played *before*; none while they take too much.

    Matches between models hold their ratings together, so only the first champion needs games of its own.
    """
    if not _may_rate(snapshot):
        return ()
    played = {match.second for match in snapshot.state.trusted_matches() if match.first == model.digest}
    played |= {each.opponent for each in before}
    rules = snapshot.rules
    missing = [name for name in rules.rating_opponents if name not in played]
    return tuple(Pairing(name, rules.rating_games, RATING) for name in missing)


def _may_rate(snapshot: Snapshot) -> bool:
    state = snapshot.state
    met = {(match.first, match.second) for match in state.trusted_matches()}
    champions = {state.champion, *(change.model for change in state.promotions)}
    wanted = snapshot.rules.rating_opponents
    if not any(all((model, opponent) in met for opponent in wanted) for model in champions):
        return True
    matches = [match for match in state.matches[-MATCHES_SEEN:] if match.at_s >= state.gpus_since_s]
    rating_s = sum(match.cpu_s for match in matches if match.purpose == RATING)
    return rating_s <= RATINGS_SHARE * sum(match.cpu_s for match in matches)


def _unrated_student(state: ConfigState) -> Model | None:
    met = {match.first for match in state.trusted_matches()}
    students = (each for each in state.students.values() if each.state is ModelState.PRODUCTION)
    return next((student for student in students if student.digest not in met), None)


# Periodic games between the last champions, so that their ratings hang together.
#
# Promotion matches link a champion to the one before it and no further, and the doubt adds up along the
# chain. In a round-robin tournament every pair of the last few meets; the results count for ratings only.


TOURNAMENT_STAGE = "tournament"
CHAMPIONS_MIN = 3  # of two, the promotion has told


def plan_tournament(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Let the last champions meet, every few hours and only if there is a new one among them."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.tournament_every_s or is_running(snapshot, made, TOURNAMENT_STAGE):
        return
    models = last_champions(state, rules.tournament_champions)
    if len(models) < CHAMPIONS_MIN:
        made.say(TOURNAMENT_STAGE, f"{len(models)} of the {CHAMPIONS_MIN} champions that it takes are there")
        return
    last = state.last_done.get(TOURNAMENT_STAGE)
    if last is not None and models[-1].digest in last.order.inputs.values():
        made.say(TOURNAMENT_STAGE, "the champion has met the ones before it")
        return
    due_s = rules.tournament_every_s + (state.first_s if last is None else last.at_s)
    if snapshot.now_s < due_s:
        made.say(TOURNAMENT_STAGE, f"the last {len(models)} champions meet later", until_s=due_s)
        return
    if waits := why_judging_waits(snapshot):
        made.say(TOURNAMENT_STAGE, f"the last {len(models)} champions meet later: {waits}")
        return
    made.want(
        TOURNAMENT_STAGE, tournament_order(state, rules, models), f"the last {len(models)} champions meet"
    )


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


# The newest that is not shown to be worse plays, whoever is published.
#
# Games by the newest network are worth most to the training that goes on from it, and most trainings improve
# it; so it plays as soon as it is there, and gives its place back when a match, a recall or the training
# itself shows that it is no good. A setting asks for a quick match first, or lets the champion play.


def decided_generator(snapshot: Snapshot) -> GeneratorMoved | None:
    """Let another network play, if another should."""
    state = snapshot.state
    model, reason = wanted_generator(snapshot)
    digest = None if model is None else model.digest
    if digest == state.generator:
        return None
    return GeneratorMoved(at_s=snapshot.now_s, model=digest, previous=state.generator, reason=reason)


def wanted_generator(snapshot: Snapshot) -> tuple[Model | None, str]:
    """Who should play, and why."""
    state, rules = snapshot.state, snapshot.rules
    champion = None if state.champion is None else state.models[state.champion]
    if rules.generator == "champion":
        return champion, "the champion plays, by setting" if champion is not None else "there is no champion"
    for model in fit_models(snapshot):
        if model is champion:
            break
        if rules.generator == "newest" or model.digest == state.generator:
            return model, f"model {model.number} is the newest that is not shown to be worse"
        found = not_worse(snapshot, model)
        if found.verdict is PromotionVerdict.KEEP:
            return model, f"model {model.number}: {found.reason}"
    if champion is not None:
        return champion, f"model {champion.number} is the champion, and nothing newer is as good"
    return None, "no network is fit to play"


def unchecked_generator(snapshot: Snapshot) -> tuple[Model, PromotionJudgment] | None:
    """The newest network and what it has yet to show, if a setting asks for a quick match before it plays."""
    model = next(fit_models(snapshot), None)
    if snapshot.rules.generator != "checked" or model is None or model.digest == snapshot.state.generator:
        return None
    found = not_worse(snapshot, model)
    return (model, found) if found.verdict is PromotionVerdict.MORE_GAMES else None


def not_worse(snapshot: Snapshot, model: Model) -> PromotionJudgment:
    state = snapshot.state
    rules = snapshot.rules.promotion
    return promotion.judge_not_worse(model.digest, state.generator, state.trusted_matches(), rules=rules)


def fit_models(snapshot: Snapshot) -> Iterator[Model]:
    """The networks that nothing speaks against, newest first."""
    state = snapshot.state
    distrusted = distrusted_models(state, snapshot.rules)
    return (
        model
        for model in reversed(state.models.values())
        if model.digest not in distrusted and may_play(state, model)
    )


def who_plays(state: ConfigState) -> str:
    """What plays and what is published, in words: two different things that may be one network."""
    champion, generator = (state.models.get(each or "") for each in (state.champion, state.generator))
    published = "nothing is published" if champion is None else f"model {champion.number} is published"
    if generator is None:
        return f"{published}, games are played without a network"
    if generator is champion:
        return f"{published} and plays"
    if champion is None or generator.number < champion.number:
        return f"{published}, model {generator.number} plays"
    newer = generator.number - champion.number
    return f"{published}, model {generator.number} plays: {newer} training{'s' * (newer > 1)} newer"


def may_play(state: ConfigState, model: Model) -> bool:
    """Whether nothing speaks against *model*: it is of the line that plays, and lost to nobody clearly."""
    reset, champion = state.reset, state.models.get(state.champion or "")
    if reset is not None and model.made_s <= reset.at_s and model.number > state.models[reset.model].number:
        return False  # it was given up
    if model.state is ModelState.ROLLED_BACK:
        return False
    # A line of another size begins from nothing, and plays when it has beaten the champion.
    if champion is not None and model.preset != champion.preset and "" not in (model.preset, champion.preset):
        return False
    is_open = model.state in (ModelState.EVALUATING, ModelState.PRODUCTION)
    return is_open or not promotion.lost_clearly(model.digest, state.trusted_matches())
