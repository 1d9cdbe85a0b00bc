"""Promotion and rollback: who passes, who does not, and what is asked for next."""

import random
from collections import Counter

import msgspec
import pytest

from ringrift.errors import ConfigError
from ringrift.learning.facts.records import Match
from ringrift.learning.judging.promotion import (
    Mode,
    PromotionRules,
    PromotionVerdict,
    judge,
    judge_rollback,
    lost_clearly,
)
from ringrift.statistics.match_evidence import Evidence, MatchVerdict
from ringrift.statistics.ratings import place_chances

RULES = PromotionRules()
EVEN = (0, 0, 1, 0, 0)
OPEN = MatchVerdict.OPEN


def match(first, second, pairs, *, purpose="promotion", recalled=False, simulations=32):
    """A two-player match of pairs by points of the first, 0 to 2 in halves; no draws."""
    games = 2 * sum(pairs)
    wins = pairs[2] + 2 * pairs[4]
    return Match(
        job_id=f"{first}-{second}",
        first=first,
        second=second,
        simulations=simulations,
        players=2,
        games=games,
        wins=wins,
        draws=0,
        losses=games - wins,
        pairs=tuple(pairs),
        purpose=purpose,
        recalled=recalled,
    )


def among_copies(first, second, places, *, purpose="promotion"):
    return Match(
        job_id=f"{first}-{second}",
        first=first,
        second=second,
        simulations=32,
        players=len(places),
        games=sum(places),
        wins=0,
        draws=0,
        losses=0,
        pairs=None,
        places=tuple(places),
        purpose=purpose,
    )


STRONG = match("new", "old", (2, 0, 20, 0, 30))
WEAK = match("new", "old", (30, 0, 20, 0, 2))
FLOOR_HELD = match("new", "random", (0, 0, 1, 0, 31))


def test_no_games_are_never_a_pass():
    first, later = judge("new", None, [], rules=RULES), judge("new", "old", [], rules=RULES)
    assert first.verdict is later.verdict is PromotionVerdict.MORE_GAMES
    assert (first.opponent, later.opponent) == ("random", "old")
    assert (first.games, later.games) == (RULES.floor_games_max, RULES.games_max)
    assert [each.opponent for each in later.plays] == ["old", "random"]
    assert (
        judge("new", None, [match("new", "random", (0,) * 5)], rules=RULES).verdict
        is PromotionVerdict.MORE_GAMES
    )
    assert judge_rollback("new", "old", [], rules=RULES).verdict is PromotionVerdict.MORE_GAMES


def test_a_stronger_candidate_is_asked_for_the_floor_and_then_promoted():
    waiting = judge("new", "old", [STRONG], rules=RULES)
    assert (waiting.verdict, waiting.gate, waiting.opponent) == (
        PromotionVerdict.MORE_GAMES,
        "floor",
        "random",
    )
    found = judge("new", "old", [STRONG, FLOOR_HELD], rules=RULES)
    assert found.verdict is PromotionVerdict.PROMOTE
    assert "stronger against the champion" in found.reason
    assert found.evidence["head_to_head"]["games"] == 104
    assert found.evidence["head_to_head"]["llr"] > found.evidence["head_to_head"]["bounds"][1]
    assert found.evidence["floor"]["games"] == 64


def test_a_weaker_candidate_is_rejected_without_a_game_against_random():
    found = judge("new", "old", [WEAK], rules=RULES)
    assert (found.verdict, found.gate) == (PromotionVerdict.REJECT, "head_to_head")
    assert "not stronger" in found.reason


def test_a_candidate_that_beats_the_champion_but_loses_to_random_is_rejected():
    found = judge("new", "old", [STRONG, match("new", "random", (12, 0, 10, 0, 10))], rules=RULES)
    assert (found.verdict, found.gate) == (PromotionVerdict.REJECT, "floor")


def test_an_undecided_match_goes_on_and_the_cap_decides_by_the_likelier_side():
    even = match("new", "old", (16, 0, 32, 0, 16))
    open_still = judge("new", "old", [even], rules=RULES)
    assert (open_still.verdict, open_still.games) == (PromotionVerdict.MORE_GAMES, 272)
    nearly = match("new", "old", (46, 0, 100, 0, 50))
    assert judge("new", "old", [nearly], rules=RULES).games == 8
    below = judge("new", "old", [match("new", "old", (48, 0, 102, 0, 50))], rules=RULES)
    assert below.verdict is PromotionVerdict.REJECT
    above = judge("new", "old", [match("new", "old", (43, 0, 103, 0, 54)), FLOOR_HELD], rules=RULES)
    assert above.verdict is PromotionVerdict.PROMOTE
    assert "at the cap" in above.reason


def test_the_pairs_decide_and_not_the_single_games():
    """Openings that one seat always wins make games look independent that are not."""
    level = judge("new", "old", [match("new", "old", (0, 0, 60, 0, 8))], rules=RULES)
    lively = judge("new", "old", [match("new", "old", (26, 0, 8, 0, 34))], rules=RULES)
    scores = [each.evidence["head_to_head"]["score"] for each in (level, lively)]
    assert scores[0] == scores[1]
    assert level.gate == "floor"  # passed
    assert lively.gate == "head_to_head"


def test_the_first_model_needs_the_floor_and_nothing_else():
    assert judge("new", None, [FLOOR_HELD], rules=RULES).verdict is PromotionVerdict.PROMOTE
    weak = match("new", "random", (10, 0, 12, 0, 10))
    assert judge("new", None, [weak], rules=RULES).verdict is PromotionVerdict.REJECT
    close = match("new", "random", (2, 0, 6, 0, 24))
    assert judge("new", None, [close], rules=RULES).verdict is PromotionVerdict.MORE_GAMES
    assert (
        judge("new", None, [close, close], rules=RULES).verdict is PromotionVerdict.REJECT
    )  # 84 % at the cap


def test_the_first_model_must_beat_the_untrained_net_where_one_is_named():
    asked = judge("new", None, [FLOOR_HELD], rules=RULES, untrained="untrained:tiny@32")
    assert (asked.verdict, asked.opponent) == (PromotionVerdict.MORE_GAMES, "untrained:tiny@32")
    beaten = match("new", "untrained:tiny@32", (0, 0, 2, 0, 12))  # a clear difference takes few games
    found = judge("new", None, [FLOOR_HELD, beaten], rules=RULES, untrained="untrained:tiny@32")
    assert found.verdict is PromotionVerdict.PROMOTE


def test_always_accept_promotes_without_a_match_against_the_champion():
    rules = PromotionRules(mode=Mode.ALWAYS_ACCEPT)
    assert judge("new", "old", [], rules=rules).opponent == "random"
    assert judge("new", "old", [FLOOR_HELD], rules=rules).verdict is PromotionVerdict.PROMOTE


def test_recalled_matches_other_settings_and_others_matches_are_no_evidence():
    recalled = msgspec.structs.replace(STRONG, recalled=True)
    other_search = msgspec.structs.replace(STRONG, simulations=800)
    rules = PromotionRules(simulations=32)
    found = judge("new", "old", [recalled, other_search, match("x", "old", (0, 0, 0, 0, 99))], rules=rules)
    assert (found.verdict, found.evidence["head_to_head"]["games"]) == (PromotionVerdict.MORE_GAMES, 0)


def test_a_match_counts_the_same_from_either_side():
    turned = match("old", "new", (30, 0, 20, 0, 2))
    assert (
        judge("new", "old", [turned], rules=RULES).evidence
        == judge("new", "old", [STRONG], rules=RULES).evidence
    )


def test_a_champion_that_later_loses_to_its_predecessor_is_rolled_back():
    won = match("new", "old", (0, 0, 20, 0, 60))  # what made it champion is no defense
    lost = match("new", "old", (40, 0, 30, 0, 5), purpose="rollback")
    found = judge_rollback("new", "old", [won, lost], rules=RULES)
    assert found.verdict is PromotionVerdict.ROLL_BACK
    assert found.evidence["rollback"]["games"] == 150
    assert "weaker than its predecessor" in found.reason


def test_a_champion_that_holds_is_kept_and_at_the_cap_too():
    holds = match("new", "old", (5, 0, 30, 0, 20), purpose="rollback")
    assert judge_rollback("new", "old", [holds], rules=RULES).verdict is PromotionVerdict.KEEP
    even = match("new", "old", (54, 0, 103, 0, 43), purpose="rollback")
    capped = judge_rollback("new", "old", [even], rules=RULES)
    assert (capped.verdict, capped.evidence["rollback"]["llr"] < 0) == (PromotionVerdict.KEEP, True)
    some = judge_rollback("new", "old", [match("new", "old", EVEN, purpose="rollback")], rules=RULES)
    assert (some.verdict, some.play.purpose, some.opponent) == (
        PromotionVerdict.MORE_GAMES,
        "rollback",
        "old",
    )


@pytest.mark.parametrize("players", [3, 4])
def test_several_players_are_judged_by_their_places(players):
    def places(gap, games):
        return [round(games * chance) for chance in place_chances(gap, players)]

    floor = among_copies("new", "random", [60, *[1] * (players - 1)])
    won = judge("new", "old", [among_copies("new", "old", places(90, 240)), floor], rules=RULES)
    assert won.verdict is PromotionVerdict.PROMOTE
    lost = judge("new", "old", [among_copies("new", "old", places(-60, 240))], rules=RULES)
    assert lost.verdict is PromotionVerdict.REJECT
    even = judge("new", "old", [among_copies("new", "old", places(15, 120))], rules=RULES)
    assert (even.verdict, even.games % players) == (PromotionVerdict.MORE_GAMES, 0)
    assert even.evidence["head_to_head"]["score"] == pytest.approx(0.5, abs=0.03)
    weak = judge("new", None, [among_copies("new", "random", [20] * players)], rules=RULES)
    assert (weak.verdict, weak.gate) == (PromotionVerdict.REJECT, "floor")
    back = among_copies("new", "old", places(-90, 240), purpose="rollback")
    assert judge_rollback("new", "old", [back], rules=RULES).verdict is PromotionVerdict.ROLL_BACK


def test_error_rates_are_about_what_the_rules_say():
    """Equal models pass seldom, clearly stronger ones nearly always."""
    rng = random.Random(11)

    def passes(elo):
        matches = [FLOOR_HELD]
        while True:
            found = judge("new", "old", matches, rules=RULES)
            if found.play is None:
                return found.verdict is PromotionVerdict.PROMOTE
            win = place_chances(elo, 2)[0]
            games = min(found.games, RULES.chunk_games)
            pairs = Counter(2 * ((rng.random() < win) + (rng.random() < win)) for _ in range(games // 2))
            matches.append(match("new", "old", [pairs[each] for each in range(5)]))

    assert sum(passes(0) for _ in range(100)) <= 25
    assert sum(passes(-25) for _ in range(60)) <= 4
    assert sum(passes(60) for _ in range(60)) >= 54


def counted(points):
    counts = Counter(points)
    return match("new", "old", [counts[each] for each in range(5)])


def pairs_until_decided(points, before=()):
    """How many pairs more a job plays that has counted those *before*."""
    counts, test = [0] * 5, RULES.head_to_head()
    for number, each in enumerate((*before, *points)):
        if number >= len(before) and test.result(Evidence(2, 2 * number, pairs=counts)).verdict is not OPEN:
            return number - len(before)
        counts[each] += 1
    return len(points)


@pytest.mark.parametrize("elo", [-25, 0, 35, 80])
def test_a_judgment_in_pieces_ends_at_the_same_opening_as_one_long_match(elo):
    """So it has the same error rates: what stops a job is what the plan decides from all counted games."""
    rng, win = random.Random(elo), place_chances(elo, 2)[0]
    for _ in range(10):
        points = [2 * ((rng.random() < win) + (rng.random() < win)) for _ in range(RULES.games_max // 2)]
        matches, begin = [FLOOR_HELD], 0
        while (found := judge("new", "old", matches, rules=RULES)).play is not None:
            in_time = points[begin : begin + rng.randrange(1, 60)]
            played = in_time[: pairs_until_decided(in_time, points[:begin])]
            matches.append(counted(played))
            begin += len(played)
        assert begin == pairs_until_decided(points)
        in_one = judge("new", "old", [FLOOR_HELD, counted(points[:begin])], rules=RULES)
        assert (found.verdict, found.evidence) == (in_one.verdict, in_one.evidence)


def test_lost_clearly_needs_evidence():
    assert lost_clearly("new", [WEAK])
    assert not lost_clearly("new", [match("new", "old", (2, 0, 3, 0, 1))])
    assert not lost_clearly("new", [match("new", "mcts:512", (30, 0, 0, 0, 0))])
    assert not lost_clearly("new", [])


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.7}, {"elo1": -5.0}, {"floor_games_min": 0}, {"games_max": 0}, {"chunk_games": 1}]
)
def test_rules_that_would_let_anything_pass_are_refused(wrong):
    with pytest.raises(ConfigError):
        PromotionRules(**wrong)


def test_rules_can_be_read_from_settings():
    rules = msgspec.convert({"mode": "always_accept", "floor_2p": 0.7}, PromotionRules)
    assert rules.mode is Mode.ALWAYS_ACCEPT
    assert rules.floor(2) == 0.7
