"""Games between players, as the jobs `evaluate` and `tournament` report them, and files of a user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.learning.facts.records import Match
from ringrift.learning.facts.trust import is_recalled
from ringrift.work.job.orders import INPUTS, JobReport

if TYPE_CHECKING:
    from ringrift.learning.facts.state import ConfigState, OpenJob

_MODEL = "model:"
_PAIR_COUNTS = 5
SCORE_TOLERANCE = 0.001  # people round
OFFERED_MATCHES_MAX = 100

Count = Annotated[int, msgspec.Meta(ge=0)]
PairCounts = tuple[int, int, int, int, int]
T = TypeVar("T")


class _Results(msgspec.Struct, frozen=True, kw_only=True):
    """How the games of two players ended, for the first of them."""

    games: Count
    wins: Count
    draws: Count
    losses: Count
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    pairs: tuple[Count, ...] | None = None
    places: tuple[Count, ...] = ()

    @property
    def seats(self) -> int:
        return max(2, len(self.places))

    def __post_init__(self) -> None:
        if self.wins + self.draws + self.losses > self.games:
            raise ValueError(f"{self.wins} + {self.draws} + {self.losses} results of {self.games} games")
        if self.pairs and (len(self.pairs) != _PAIR_COUNTS or 2 * sum(self.pairs) > self.games):
            raise ValueError(f"pairs {list(self.pairs)} of {self.games} games")
        if self.seats > 2 and (len(self.places) != self.seats or sum(self.places) > self.games):
            raise ValueError(f"places {list(self.places)} of {self.games} games for {self.seats} players")


class _Played(_Results, frozen=True, kw_only=True):
    """One match of an evaluation."""

    opponent: str
    players: Annotated[int, msgspec.Meta(ge=2)] = 2

    @property
    def seats(self) -> int:
        return self.players


class _Pair(_Results, frozen=True, kw_only=True):
    """One pair of a tournament."""

    players: tuple[str, str]


class OfferedMatch(_Played, frozen=True, kw_only=True):
    """One match in a file of somebody else: nothing of it is believed that its own numbers contradict."""

    def __post_init__(self) -> None:
        super(_Played, self).__post_init__()
        if self.players != 2:
            return  # among copies a place is no win or loss; `places` is what counts
        if not self.games or self.wins + self.draws + self.losses != self.games:
            raise ValueError(f"{self.wins} + {self.draws} + {self.losses} results of {self.games} games")
        points = self.wins + self.draws / 2
        if abs(self.score - points / self.games) > SCORE_TOLERANCE:
            raise ValueError(f"a score of {self.score} for {points} points of {self.games} games")
        if not self.pairs:
            return
        of_pairs = sum(count * half / 2 for half, count in enumerate(self.pairs))
        left = self.games - 2 * sum(self.pairs)  # games whose opening was not played from the other seat
        if not of_pairs <= points <= of_pairs + left:
            raise ValueError(f"pairs {list(self.pairs)} for {points} points of {self.games} games")


class OfferedResults(msgspec.Struct, frozen=True, kw_only=True):
    """A file with results of an evaluation, in the words of the job `evaluate`."""

    config: str
    model_sha256: str  # of the weights
    matches: Annotated[tuple[OfferedMatch, ...], msgspec.Meta(min_length=1, max_length=OFFERED_MATCHES_MAX)]
    # Of the search with which the model played; None: as in the run's own matches.
    simulations: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None


class _EvaluateFields(msgspec.Struct, frozen=True, kw_only=True):
    matches: tuple[_Played, ...] = ()


class _TournamentFields(msgspec.Struct, frozen=True, kw_only=True):
    pairs: tuple[_Pair, ...] = ()


def evaluation_matches(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> list[Match]:
    candidate = str(job.order.params["candidate"])
    told = read_fields(report.fields, _EvaluateFields, "the result").matches
    return _matches(state, job, report, at_s, [((candidate, each.opponent), each) for each in told])


def tournament_matches(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> list[Match]:
    told = read_fields(report.fields, _TournamentFields, "the result").pairs
    return _matches(state, job, report, at_s, [(each.players, each) for each in told])


def _matches(
    state: ConfigState,
    job: OpenJob,
    report: JobReport,
    at_s: float,
    results: Sequence[tuple[tuple[str, str], _Results]],
) -> list[Match]:
    games = sum(found.games for _, found in results)
    cpu_s = report.cpu_s / games if games else 0.0
    return [_match(state, job, report, at_s, who, found, cpu_s * found.games) for who, found in results]


def _match(
    state: ConfigState,
    job: OpenJob,
    report: JobReport,
    at_s: float,
    who: tuple[str, str],
    found: _Results,
    cpu_s: float,
) -> Match:
    first, simulations = participant(who[0], job.order.inputs)
    second, _ = participant(who[1], job.order.inputs)
    recalls = [each for each in state.recalls.values() if not each.withdrawn]
    purposes = {str(gate.get("opponent")): gate.get("purpose") for gate in _gates(job.order.params)}
    return Match(
        job_id=job.job_id,
        first=first,
        second=second,
        simulations=simulations,
        players=found.seats,
        games=found.games,
        wins=found.wins,
        draws=found.draws,
        losses=found.losses,
        pairs=None if not found.pairs else convert_to(found.pairs, PairCounts),
        places=found.places,
        score=found.score,
        at_s=at_s,
        worker=report.worker,
        purpose=str(purposes.get(who[1]) or job.order.purpose),
        recalled=is_recalled(recalls, worker=report.worker, models=(first, second), at_s=at_s),
        cpu_s=cpu_s,
    )


def _gates(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [gate for gate in params.get("gates", ()) if isinstance(gate, dict)]


def ordered_games(params: Mapping[str, Any]) -> dict[str, int]:
    """How many games each player was to play in all, by its text: of a tournament, or against a candidate."""
    games = int(params.get("games", 0))
    named = dict.fromkeys((*params.get("opponents", ()), *params.get("players", ())), games)
    for gate in _gates(params):
        before = gate.get("prior") or {}
        named[gate.get("opponent", "")] = int(gate.get("games", 0)) - int(before.get("games", 0))
    return {str(text): most for text, most in named.items()}


def unasked(job: OpenJob, matches: Sequence[Match]) -> str:
    """Games that nobody ordered are no evidence; empty if all were ordered."""
    params = job.order.params
    asked = {participant(text, job.order.inputs)[0]: games for text, games in ordered_games(params).items()}
    both = "players" in params  # of a tournament; in an evaluation the first is the candidate of the order
    met = [match.second for match in matches] + [match.first for match in matches if both]
    strange = sorted(set(met) - asked.keys())
    if strange:
        return f"games against {', '.join(each[:64] for each in strange[:3])} were not asked for"
    pairs = Counter(frozenset((match.first, match.second)) for match in matches)
    if repeated := [pair for pair, times in pairs.items() if times > 1]:
        return f"the games of {' and '.join(sorted(each[:12] for each in repeated[0]))} are told twice"
    for match in matches:
        games = asked[match.second]
        # Openings are whole: the last may reach over.
        if match.games > max(1, -(-games // match.players)) * match.players:
            return f"{match.games} games against {match.second[:12]} are told; {games} were ordered"
    return ""


def participant(text: str, inputs: dict[str, str]) -> tuple[str, int]:
    """Who plays under a player's text, and with how many simulations: a model by its digest.

    Raises `ConfigError` for a model that is not among *inputs*.
    """
    name, _, simulations = text.rpartition("@")
    if not name.startswith(_MODEL):
        return text, 0
    file = name.removeprefix(_MODEL).rpartition("/")[2]
    if file not in inputs or not simulations.isdecimal():
        raise ConfigError(f"the player {text} is not among the inputs")
    return inputs[file], int(simulations)


def player_text(file: str, simulations: int) -> str:
    """The text under which a model among the inputs plays."""
    return f"{_MODEL}{INPUTS}/{file}@{simulations}"


def read_fields(told: dict[str, Any], kind: type[T], what: str) -> T:
    """Raises `ConfigError` that says which field of *what* is wrong."""
    try:
        return convert_to(told, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None
