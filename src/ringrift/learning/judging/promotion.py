"""Whether a model becomes the champion, and whether a champion stays: pure decisions on counted matches.

A candidate must beat the champion in a sequential test with stated error rates, and must not have fallen
below a floor against the random player. No games are never a pass. Every answer says in plain words why,
on which evidence, and what to play next where there is too little of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.errors import ConfigError
from ringrift.learning.facts.records import Match
from ringrift.learning.judging.ratings import is_baseline
from ringrift.statistics.match_evidence import (
    PAIR_OUTCOMES,
    Evidence,
    FloorTest,
    MatchVerdict,
    SequentialTest,
    SprtConfig,
    SprtState,
    Verdict,
)
from ringrift.statistics.ratings import wilson_interval

# The matches that speak for or against a participant, added up.


def gather(
    participant: str,
    opponent: str,
    matches: Sequence[Match],
    *,
    players: int,
    purpose: str,
    only: int | None = None,
) -> Evidence:
    """Add up what was played between the two for *purpose*, with *only* that many simulations if given.

    Matches for ratings count for a promotion too; those for a rollback answer another question. Among
    copies only the one who sat alone was tested.
    """
    found = Evidence(players, places=[0] * players if players > 2 else [])
    for match in matches:
        wanted = match.purpose == purpose or (purpose == "promotion" and match.purpose == "rating")
        if match.recalled or match.players != players or not wanted or only not in (None, match.simulations):
            continue
        if (match.first, match.second) == (participant, opponent):
            found.add(_counted(match))
        elif (match.second, match.first) == (participant, opponent) and players == 2:
            found.add(_counted(match).turned())
    return found


def _counted(match: Match) -> Evidence:
    return Evidence(
        match.players,
        games=match.games,
        wins=match.wins,
        draws=match.draws,
        losses=match.losses,
        pairs=list(match.pairs or [0] * PAIR_OUTCOMES),
        places=list(match.places) if match.players > 2 else [],
    )


# The judgments.


RANDOM = "random"
PROMOTION, ROLLBACK, GENERATOR = "promotion", "rollback", "generator"  # what a match was played for
FLOOR = "floor"  # the last gate
EQUAL = 0.5


class Mode(StrEnum):
    """How a candidate becomes the champion."""

    SPRT = "sprt"  # by beating the champion
    ALWAYS_ACCEPT = "always_accept"  # at once, if it holds the floor; the test may take it back


class PromotionVerdict(StrEnum):
    """What is to be done now."""

    PROMOTE = "promote"
    REJECT = "reject"
    ROLL_BACK = "roll_back"
    KEEP = "keep"  # the champion stays, and the question is settled
    MORE_GAMES = "more_games"


class PromotionRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has to be shown, and how sure it has to be."""

    mode: Mode = Mode.SPRT
    elo0: float = 0.0
    elo1: float = 35.0
    alpha: float = 0.05
    beta: float = 0.05
    untrained_elo1: float = 100.0  # a first model is rather so much stronger than the untrained net
    games_max: int = 400
    chunk_games: int = 64  # of one second look at a champion
    # The least share against the random player: of points for two players, of first places for more.
    floor_2p: float = 0.85
    floor_3p: float = 0.55
    floor_4p: float = 0.45
    floor_games_min: int = 16
    floor_games_max: int = 128
    generator_games_max: int = 128  # of the quick match of a network that is to play the games
    simulations: int | None = None  # only matches of this search setting count; None: all do

    def __post_init__(self) -> None:
        self.test()  # refuses impossible error rates
        if not 0 < self.floor_games_min <= self.floor_games_max:
            raise ConfigError("promotion: a floor without games would let everything pass")
        if self.games_max < 2 or self.chunk_games < 2:
            raise ConfigError("promotion: games_max and chunk_games must be 2 or more")
        if not all(0 <= floor <= 1 for floor in (self.floor_2p, self.floor_3p, self.floor_4p)):
            raise ConfigError("promotion: a floor is a share from 0 to 1")
        if self.simulations is not None and self.simulations < 1:
            raise ConfigError("promotion: simulations must be 1 or more")

    def test(self) -> SprtConfig:
        return SprtConfig(self.elo0, self.elo1, self.alpha, self.beta)

    def reversed_test(self) -> SprtConfig:
        """Is the champion rather as strong as its predecessor, or weaker by as much as counts?"""
        return SprtConfig(-self.elo1, -self.elo0, self.beta, self.alpha)

    def head_to_head(self) -> SequentialTest:
        return SequentialTest(self.test(), self.games_max, clear_gains=True)

    def second_look(self, games_max: int) -> SequentialTest:
        """A champion that is clearly ahead of its predecessor needs few games for that."""
        return SequentialTest(self.reversed_test(), games_max, clear_gains=True)

    def against_untrained(self) -> SequentialTest:
        """Nobody waits for small differences here: a model that has learned anything is far ahead."""
        elo1 = max(self.untrained_elo1, self.elo1)
        return SequentialTest(SprtConfig(self.elo0, elo1, self.alpha, self.beta), self.games_max)

    def floor_test(self, players: int) -> FloorTest:
        return FloorTest(self.floor(players), self.floor_games_min, self.floor_games_max)

    def floor(self, players: int) -> float:
        return {2: self.floor_2p, 3: self.floor_3p, 4: self.floor_4p}.get(players, 1.5 / players)

    def chunk(self, players: int, left: int) -> int:
        """So many games of a second look next, each opening once from every seat."""
        return max(players, min(self.chunk_games, left) // players * players)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Games to be played by the model in question."""

    opponent: str
    games: int  # at most
    purpose: str = PROMOTION
    test: SequentialTest | FloorTest | None = None  # what may end them earlier; None: all are played
    before: Evidence | None = None  # what the test has counted so far


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionJudgment:
    """A verdict, why, on what, and what to play before asking again."""

    verdict: PromotionVerdict
    gate: str  # which question decided or is still open: head_to_head, floor, untrained, rollback
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)  # by gate
    plays: tuple[Pairing, ...] = ()  # what is still to be shown: each only if those before it are passed

    @property
    def play(self) -> Pairing | None:
        """What to play next; None if nothing is open."""
        return self.plays[0] if self.plays else None

    @property
    def opponent(self) -> str:
        """Whom to play next; asked only while more games are wanted."""
        return self.plays[0].opponent

    @property
    def games(self) -> int:
        """How many games to play next, at most."""
        return self.plays[0].games if self.plays else 0


def judge(
    candidate: str,
    champion: str | None,
    matches: Sequence[Match],
    *,
    rules: PromotionRules,
    untrained: str | None = None,
    players: int | None = None,
) -> PromotionJudgment:
    """Is *candidate* to replace *champion*?

    A first model has no champion to beat: it must hold the floor, and beat the *untrained* net if one is
    named. The floor comes last, because few candidates that beat a champion fail it. Before the first match
    *players* says what kind of games are to be played.
    """
    players = players or _players(matches)
    gates: list[PromotionJudgment] = []
    if champion is not None and rules.mode is Mode.SPRT:
        gates.append(_beats(candidate, champion, matches, rules, players, gate="head_to_head"))
    elif champion is None and untrained is not None:
        gates.append(_beats(candidate, untrained, matches, rules, players, gate="untrained"))
    floor = _holds_floor(candidate, matches, rules, players)
    if all(each.verdict is PromotionVerdict.PROMOTE for each in gates):
        gates.append(floor)
    evidence = {each.gate: each.evidence for each in gates}
    last = gates[-1]
    if last.verdict is PromotionVerdict.MORE_GAMES:
        plays = last.plays if last is floor else (*last.plays, *floor.plays)
        return replace(last, evidence=evidence, plays=plays)
    if last.verdict is not PromotionVerdict.PROMOTE:
        return replace(last, evidence=evidence)
    reason = "; ".join(each.reason for each in gates)
    if champion is None:
        reason = f"first model: {reason}"
    return PromotionJudgment(
        verdict=PromotionVerdict.PROMOTE, gate=gates[0].gate, reason=reason, evidence=evidence
    )


def judge_rollback(
    champion: str,
    previous: str,
    matches: Sequence[Match],
    *,
    rules: PromotionRules,
    since_s: float = 0.0,
) -> PromotionJudgment:
    """Is *champion* to give its place back to *previous*?

    Only games played for this question count: those that won the promotion were chosen for being good. To
    give back needs proof, so at the cap the champion stays. A second look counts the games *since_s* only.
    """
    players, test = _players(matches), rules.second_look(rules.games_max)
    counted = [match for match in matches if match.at_s >= since_s]
    found = gather(champion, previous, counted, players=players, purpose=ROLLBACK, only=rules.simulations)
    state, result = found.state(test.config), test.result(found)
    evidence = {ROLLBACK: _test_evidence(found, state)}
    if state.verdict is Verdict.NOT_STRONGER:
        reason = f"weaker than its predecessor: {_in_words(found, state)}"
        return PromotionJudgment(
            verdict=PromotionVerdict.ROLL_BACK, gate=ROLLBACK, reason=reason, evidence=evidence
        )
    if result.verdict is MatchVerdict.PASSED and not result.at_cap:
        reason = f"not weaker than its predecessor: {_in_words(found, state)}"
        return PromotionJudgment(
            verdict=PromotionVerdict.KEEP, gate=ROLLBACK, reason=reason, evidence=evidence
        )
    if found.games >= rules.games_max:
        reason = f"no proof that it is weaker after {found.games} games: {_in_words(found, state)}"
        return PromotionJudgment(
            verdict=PromotionVerdict.KEEP, gate=ROLLBACK, reason=reason, evidence=evidence
        )
    # One job may have had no time for all games of a look: the next plays the rest of it.
    once = rules.chunk(players, rules.games_max)
    games = rules.chunk(players, min(once - found.games % once, rules.games_max - found.games))
    return PromotionJudgment(
        verdict=PromotionVerdict.MORE_GAMES,
        gate=ROLLBACK,
        reason=f"against its predecessor: {_in_words(found, state)}",
        evidence=evidence,
        plays=(Pairing(previous, games, ROLLBACK, rules.second_look(found.games + games), found),),
    )


def judge_not_worse(
    model: str, opponent: str | None, matches: Sequence[Match], *, rules: PromotionRules
) -> PromotionJudgment:
    """Is *model* as good as *opponent*, or nearly? A quick question, asked of what plays the games.

    At the cap the likelier answer is taken: a wrong one costs games that are a little weaker.
    """
    if opponent is None:
        reason = "there is nobody that it could be worse than"
        return PromotionJudgment(verdict=PromotionVerdict.KEEP, gate=GENERATOR, reason=reason)
    test = SequentialTest(rules.reversed_test(), rules.generator_games_max)
    found = gather(
        model, opponent, matches, players=_players(matches), purpose=GENERATOR, only=rules.simulations
    )
    state = found.state(test.config)
    evidence, words = {GENERATOR: _test_evidence(found, state)}, _in_words(found, state)
    match test.result(found).verdict:
        case MatchVerdict.OPEN:
            return PromotionJudgment(
                verdict=PromotionVerdict.MORE_GAMES,
                gate=GENERATOR,
                reason=f"against what plays: {words}",
                evidence=evidence,
                plays=(replace(_open(opponent, test, found), purpose=GENERATOR),),
            )
        case MatchVerdict.PASSED:
            verdict, reason = PromotionVerdict.KEEP, f"not worse than what plays: {words}"
        case _:
            verdict, reason = PromotionVerdict.REJECT, f"worse than what plays: {words}"
    return PromotionJudgment(verdict=verdict, gate=GENERATOR, reason=reason, evidence=evidence)


def lost_clearly(model: str, matches: Sequence[Match]) -> bool:
    """Whether all that *model* played for its promotion against another model says that it is the weaker."""
    opponents = {match.second for match in matches if match.first == model and not is_baseline(match.second)}
    players = _players(matches)
    for opponent in opponents:
        found = gather(model, opponent, matches, players=players, purpose=PROMOTION)
        if found.games and wilson_interval(found.score, found.games)[1] < EQUAL:
            return True
    return False


def _players(matches: Sequence[Match]) -> int:
    """All matches of a config have the same number; before the first it decides nothing."""
    return matches[0].players if matches else 2


def _beats(
    candidate: str, opponent: str, matches: Sequence[Match], rules: PromotionRules, players: int, *, gate: str
) -> PromotionJudgment:
    found = gather(candidate, opponent, matches, players=players, purpose=PROMOTION, only=rules.simulations)
    test = rules.head_to_head() if gate == "head_to_head" else rules.against_untrained()
    state, result = found.state(test.config), test.result(found)
    evidence = _test_evidence(found, state)
    who = "the champion" if gate == "head_to_head" else "the untrained net"
    words = f"against {who}: {_in_words(found, state)}"
    if result.verdict is MatchVerdict.OPEN:
        return PromotionJudgment(
            verdict=PromotionVerdict.MORE_GAMES,
            gate=gate,
            reason=f"undecided {words}",
            evidence=evidence,
            plays=(_open(opponent, test, found),),
        )
    passed = result.verdict is MatchVerdict.PASSED
    how = "stronger" if passed else "not stronger"
    if shown := [gain for gain in test.gains(found) if passed and gain.is_shown]:
        gain = shown[-1]
        words += f"; rather {gain.elo:.0f} points ahead, LLR {gain.llr:+.2f} of {gain.bound:.2f}"
        evidence["clear_gain"] = {"elo": gain.elo, "llr": round(gain.llr, 4), "bound": round(gain.bound, 4)}
    return PromotionJudgment(
        verdict=PromotionVerdict.PROMOTE if passed else PromotionVerdict.REJECT,
        gate=gate,
        reason=f"rather {how} at the cap {words}" if result.at_cap else f"{how} {words}",
        evidence={**evidence, "at_cap": True} if result.at_cap else evidence,
    )


def _holds_floor(
    candidate: str, matches: Sequence[Match], rules: PromotionRules, players: int
) -> PromotionJudgment:
    found = gather(candidate, RANDOM, matches, players=players, purpose=PROMOTION, only=rules.simulations)
    test = rules.floor_test(players)
    share, games, verdict = found.win_share, found.games, test.result(found).verdict
    evidence = {
        "games": games,
        "score": round(share, 4),
        "floor": test.share,
        "interval": list(test.interval(found)),
    }
    words = f"{share:.0%} of {games} games against random, floor {test.share:.0%}"
    if verdict is MatchVerdict.OPEN:
        return PromotionJudgment(
            verdict=PromotionVerdict.MORE_GAMES,
            gate=FLOOR,
            reason=f"the floor is open: {words}" if games else "no games against random yet",
            evidence=evidence,
            plays=(_open(RANDOM, test, found),),
        )
    passed = verdict is MatchVerdict.PASSED
    return PromotionJudgment(
        verdict=PromotionVerdict.PROMOTE if passed else PromotionVerdict.REJECT,
        gate=FLOOR,
        reason=words if passed else f"too weak: {words}",
        evidence=evidence,
    )


def _open(opponent: str, test: SequentialTest | FloorTest, found: Evidence) -> Pairing:
    """What is left of a test, in whole openings."""
    left = -(-(test.games_max - found.games) // found.players) * found.players
    return Pairing(opponent, left, test=test, before=found)


def _test_evidence(found: Evidence, state: SprtState) -> dict[str, Any]:
    return {
        "games": found.games,
        "pairs": found.pairs,
        "places": found.places,
        "score": round(found.score, 4),
        "llr": round(state.llr, 4),
        "bounds": [round(state.lower, 4), round(state.upper, 4)],
    }


def _in_words(found: Evidence, state: SprtState) -> str:
    if not found.games:
        return "no games yet"
    bounds = f"LLR {state.llr:+.2f} of [{state.lower:.2f}, {state.upper:.2f}]"
    return f"score {found.score:.1%} in {found.games} games, {bounds}"
