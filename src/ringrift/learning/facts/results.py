"""From a job's report to records: what each kind of job adds to the state of its config.

Reading is apart from adding, so that a report can be tried before it becomes a fact: a job may be anybody's
program, and a fact that cannot be taken in would stop every later start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.learning.facts.records import (
    Comparison,
    Match,
    Model,
    ModelState,
    Samples,
    Shard,
    ShardState,
    Unfinished,
    Vote,
    is_recalled,
)
from ringrift.work.job.protocol import INPUTS, RINGRIFT_PROGRAM, JobArtifact, JobOrder, JobReport

if TYPE_CHECKING:
    from ringrift.learning.facts.state import ConfigState, OpenJob

# Games between players, as the jobs `evaluate` and `tournament` report them.


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
    matches = read_fields(report.fields, _EvaluateFields, "the result").matches
    return _matches(state, job, report, at_s, [((candidate, each.opponent), each) for each in matches])


def tournament_matches(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> list[Match]:
    pairs = read_fields(report.fields, _TournamentFields, "the result").pairs
    return _matches(state, job, report, at_s, [(each.players, each) for each in pairs])


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


def read_fields(given: dict[str, Any], kind: type[T], what: str) -> T:
    """Raises `ConfigError` that says which field of *what* is wrong."""
    try:
        return convert_to(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None


# What each kind of job reports, and what it adds.


WEIGHTS_SUFFIX = ".safetensors"
CHECKPOINT_FILE = f"checkpoint{WEIGHTS_SUFFIX}"
# Of an order from outside: the samples that hold its games, and when the file was written.
HELD_BY, WRITTEN = "held_by", "written_s"
OUTSIDE = "outside"  # the purpose and the worker of what no job of the run brought
DATA_REFUSED = "data_refused"
SLOT_FIELD = "slot"  # of the result of a training: the slot under which a trainer of one's own made it
MACHINE_CHARS_MAX = 1000
MOVES_MAX = 50_000  # of one game
TURNS_MAX = 1_000
WORDS_MAX = 300


# --- what a report has to say -----------------------------------------------------------------------------


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a file of games or samples."""

    games: Count = 0
    rows: Count = 0


class _InProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a file of unfinished games."""

    games: Annotated[int, msgspec.Meta(ge=1)]
    moves: Count

    def __post_init__(self) -> None:
        if self.moves > self.games * MOVES_MAX:
            raise ValueError(f"{self.moves} moves of {self.games} games")


class _Check(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the check of one shard."""

    shard: str = ""
    games: Count = 0
    refused: Count = 0
    rows: Count = 0
    reasons: dict[str, Count] = {}
    quality: float | None = None

    def __post_init__(self) -> None:
        if self.refused > self.games:
            raise ValueError(f"{self.refused} of {self.games} games were refused")


class _SelfplayFields(msgspec.Struct, frozen=True, kw_only=True):
    generator_sha256: str | None = None
    cut_off: Count = 0  # too long, without a result
    machine: Annotated[str, msgspec.Meta(max_length=MACHINE_CHARS_MAX)] = ""
    resumed_turns: Annotated[int, msgspec.Meta(ge=0, le=TURNS_MAX)] = 0


class _Difference(msgspec.Struct, frozen=True, kw_only=True):
    game: str = ""
    move: int | None = None
    what: str = ""


class _RecomputeFields(msgspec.Struct, frozen=True, kw_only=True):
    agrees: bool
    games: Annotated[int, msgspec.Meta(ge=1)]
    moves: Count = 0
    first_difference: _Difference | None = None


class _TrainFields(msgspec.Struct, frozen=True, kw_only=True):
    steps: Count = 0
    best_step: Count = 0


class _Losses(msgspec.Struct, frozen=True, kw_only=True):
    policy: float
    value: float
    entropy: float = 0.0


class _CalibrationBin(msgspec.Struct, frozen=True, kw_only=True):
    rows: Count


class _Calibration(msgspec.Struct, frozen=True, kw_only=True):
    error: float
    bias: float
    bins: tuple[_CalibrationBin, ...]


# What is kept of a training's result beside its files, where it is said as docs/jobs.md has it.
_LEARNED: dict[str, Any] = {
    "train": _Losses,
    "held": float | dict[str, float],
    "best_held": float | dict[str, float],
    "calibration": _Calibration,
    "samples_per_s": float,
}


@dataclass(slots=True)
class _Brought:
    """What a report adds."""

    shards: list[Shard] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    checks: list[tuple[Shard, dict[str, Any]]] = field(default_factory=list)
    counted: list[Shard] = field(default_factory=list)  # their games count by the samples made of them
    held_by: Samples | None = None  # the samples that came before, by which the games of the shards count
    held_games: int = 0
    samples: list[Samples] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    students: list[Model] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    cut_off: int = 0
    vote: tuple[Shard | Unfinished, Vote, _RecomputeFields] | None = None


# --- adding and refusing ----------------------------------------------------------------------------------


def take_in(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    """Add what *job* brought. A kind that brings nothing to the state (a tuning run) is only counted."""
    if (read := _READ.get(job.kind)) is None:
        return
    brought = read(state, job, report, at_s)
    state.totals["cut_off"] += brought.cut_off
    for held in brought.unfinished:
        state.add_unfinished(held, job.order)
    _add_shards(state, job, brought)
    for shard, found in brought.checks:
        state.set_shard(shard, **found)
        state.standing(shard.worker).checked(found["reasons"])
    if brought.vote is not None:
        _take_vote(state, job, *brought.vote)
    for samples in brought.samples:
        state.add_samples(samples)
    for model in brought.models:
        state.add_model(model)
    for student in brought.students:
        state.add_student(student)
    state.matches += brought.matches


def _add_shards(state: ConfigState, job: OpenJob, brought: _Brought) -> None:
    for shard in brought.counted:
        state.set_shard(shard, games=0, rows=0)
    new = [shard.digest for shard in brought.shards if shard.digest not in state.shards]
    for shard in brought.shards:
        if shard.digest in new:
            state.standing(shard.worker).brought(shard, job.order)
        state.add_shard(shard)
    if brought.held_by is not None and new:
        state.count_by_samples(new, brought.held_by, brought.held_games)


def _take_vote(
    state: ConfigState, job: OpenJob, shard: Shard | Unfinished, vote: Vote, found: _RecomputeFields
) -> None:
    comparison = state.comparisons.setdefault(shard.digest, Comparison(shard.digest, shard.worker, job.order))
    comparison.votes.append(vote)
    if vote.worker != shard.worker:
        state.standing(vote.worker).recomputed += 1
    judged, player = comparison.judgment(), state.standing(shard.worker)
    if judged is None:
        return
    del state.comparisons[shard.digest]
    player.compared += 1
    player.games_compared += found.games
    player.moves_compared += found.moves
    for name in judged.at_fault:
        whose = "" if name == shard.worker else f"it searched games of {shard.worker} wrongly: "
        state.standing(name).failed(whose + comparison.difference())
    if judged.is_disputed:
        for name in {shard.worker, *(each.worker for each in comparison.votes)}:
            state.standing(name).disputed += 1
    elif shard.worker not in judged.at_fault:
        player.agreed(shard.made_s)


def compared_games(state: ConfigState, order: JobOrder) -> Shard | Unfinished | None:
    """The file of games that *order* has searched again; None if it is not known."""
    digest = order.inputs.get(str(order.params.get("shard", "")).rpartition("/")[2], "")
    return state.shards.get(digest) or state.unfinished.get(digest)


def problem_with(state: ConfigState, job: OpenJob, report: JobReport) -> str:
    """Why *report* cannot be the answer to *job*; empty if it can. Asked before it becomes a fact."""
    if min(report.wall_s, report.cpu_s, report.gpu_s) < 0:
        return "the report counts time below zero"
    for kinds in _NEEDED.get(job.kind, ()):
        if not any(_artifacts(report, kind) for kind in kinds):
            how = "refused its data and" if report.status == DATA_REFUSED else "ended well but"
            return _with_reason(f"the job {how} brought no {' and no '.join(kinds)}", report)
    read = _READ.get(job.kind)
    try:
        brought = _Brought() if read is None else read(state, job, report, 0.0)
    except ConfigError as error:
        return str(error)
    if job.kind == "validate" and report.status != DATA_REFUSED and not _named_shards(job, report):
        return "the check names none of the shards that it was given"
    if job.kind == "selfplay" and (claim := _unordered_games(state, job, brought)):
        return claim
    known = [model for model in brought.models + brought.students if state.player(model.digest)]
    if known:
        return f"the training changed nothing: it brought model {known[0].digest[:12]} again"
    if job.kind not in ("evaluate", "tournament"):
        return ""
    if not (brought.matches and all(match.games for match in brought.matches)):
        return _with_reason("no games were played", report)
    return unasked(job, brought.matches)


def _unordered_games(state: ConfigState, job: OpenJob, brought: _Brought) -> str:
    """Games by another model, or more of them, than were ordered; empty if there are none."""
    made: list[Shard | Unfinished] = [*brought.shards, *brought.unfinished]
    if brought.unfinished and (len(brought.unfinished) > 1 or not job.order.params.get("hand_over")):
        return "it hands games over that nobody asked for"
    model = str(job.order.params.get("model", "")).rpartition("/")[2]
    wanted = job.order.inputs.get(model, "none")
    for each in made:  # a program of a user's own may say nothing of its model
        if each.model is not None and each.model != wanted:
            return f"its games are said to be by model {each.model[:12]}; ordered was {wanted[:12]}"
    games, ordered = sum(each.games for each in made), job.order.params.get("games")
    resumed = sum(state.unfinished[digest].games for digest in _resumed(state, job.order))
    if isinstance(ordered, int) and games > ordered + resumed:
        more = f" and {resumed} handed to it" if resumed else ""
        return f"it brought {games} games; {ordered} were ordered{more}"
    return ""


def _with_reason(what: str, report: JobReport) -> str:
    """What the job itself says of it comes first: that is the cause."""
    said = report.fields.get("error")
    return f"{said}; {what}" if isinstance(said, str) and said else what


def match_with(match: Match, **changes: Any) -> Match:
    return msgspec.structs.replace(match, **changes)


# --- reading ----------------------------------------------------------------------------------------------


def _selfplay(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    artifacts = _artifacts(report, "shard")
    fields = read_fields(report.fields, _SelfplayFields, "the result")
    brought, resumed = _Brought(cut_off=fields.cut_off), _resumed(state, job.order)
    if job.order.purpose == OUTSIDE:
        brought.held_by = state.samples.get(str(job.order.params.get(HELD_BY)))
    for artifact in _artifacts(report, "unfinished"):
        held = read_fields(artifact.counts, _InProgress, artifact.name)
        brought.unfinished.append(
            Unfinished(
                digest=artifact.digest,
                job_id=job.job_id,
                games=held.games,
                moves=held.moves,
                model=fields.generator_sha256,
                worker=report.worker,
                made_s=at_s,
                machine=report.machine or fields.machine,
                can_be_recomputed=_can_be_recomputed(job.order, fields.machine),
                resumed=resumed,
                turns=fields.resumed_turns if resumed else 0,
            )
        )
    for artifact in artifacts:
        counts = read_fields(artifact.counts, _Rows, artifact.name)
        is_held = brought.held_by is not None
        brought.held_games += counts.games if is_held else 0
        brought.shards.append(
            Shard(
                digest=artifact.digest,
                job_id=job.job_id,
                name=artifact.name,
                state=ShardState.UNCHECKED,
                games=0 if is_held else counts.games,
                rows=0 if is_held else counts.rows,
                model=fields.generator_sha256,
                simulations=int(job.order.params.get("simulations", 0)),
                worker=report.worker,
                made_s=at_s,
                ordered_s=job.issued_s,
                cpu_s=report.cpu_s / len(artifacts),
                # What computed on a GPU is compared by distances in any case, so there the job may say it.
                machine=report.machine or fields.machine,
                can_be_recomputed=_can_be_recomputed(job.order, fields.machine),
                resumed=resumed,
                turns=fields.resumed_turns if resumed else 0,
            )
        )
    return brought


def _resumed(state: ConfigState, order: JobOrder) -> tuple[str, ...]:
    """The files of unfinished games that *order* names."""
    return tuple(digest for digest in order.inputs.values() if digest in state.unfinished)


def _can_be_recomputed(order: JobOrder, machine: str) -> bool:
    """By what was ordered: a worker that could say so itself would have its games compared never."""
    return order.program == RINGRIFT_PROGRAM or (not order.program and bool(machine))


def _recompute(state: ConfigState, job: OpenJob, report: JobReport, _at_s: float) -> _Brought:
    found = read_fields(report.fields, _RecomputeFields, "the result")
    shard, first = compared_games(state, job.order), found.first_difference
    if shard is None:
        return _Brought()
    if found.agrees == (first is not None):
        raise ConfigError("the comparison says that it agrees, and where it does not")
    move = "" if first is None or first.move is None else f" move {first.move + 1}"
    text = "" if first is None else f"{first.game}{move}: {first.what}"
    return _Brought(vote=(shard, Vote(report.worker, found.agrees, text[:WORDS_MAX]), found))


def _validate(state: ConfigState, job: OpenJob, report: JobReport, _at_s: float) -> _Brought:
    """Shards that the report doesn't name as checked were damaged, and are refused whole."""
    checked = _named_shards(job, report)
    brought = _Brought()
    for digest in job.order.inputs.values():
        shard = state.shards.get(digest)
        if shard is None or shard.state is not ShardState.UNCHECKED:
            continue
        if digest not in checked:
            refused = {"games": 0, "rows": 0, "refused": shard.games, "reasons": {"damaged": shard.games}}
            brought.checks.append((shard, {"state": ShardState.REFUSED, **refused}))
            continue
        found, written = checked[digest]
        games, is_counted = found.games - found.refused, digest in state.sampled
        changes = {
            "state": ShardState.CHECKED if games else ShardState.REFUSED,
            "games": 0 if is_counted else games,
            "rows": 0 if is_counted else found.rows,
            "refused": found.refused,
            "reasons": dict(found.reasons),
            "quality": found.quality,
            "report": written.digest,
        }
        brought.checks.append((shard, changes))
    return brought


def _named_shards(job: OpenJob, report: JobReport) -> dict[str, tuple[_Check, JobArtifact]]:
    """The checks of shards that were among the inputs."""
    checks = [(read_fields(each.counts, _Check, each.name), each) for each in _artifacts(report, "report")]
    given = set(job.order.inputs.values())
    return {check.shard: (check, each) for check, each in checks if check.shard in given}


def _export(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    shards = tuple(d for name, d in job.order.inputs.items() if not name.endswith(".report.json"))
    brought = _Brought()
    for artifact in _artifacts(report, "samples"):
        counts = read_fields(artifact.counts, _Rows, artifact.name)
        if job.order.purpose == OUTSIDE:
            # The file stands for its games too, told of or not: its rows count and are paid for.
            brought.counted = _without_samples(state, counts.games)
            shards = (artifact.digest, *(each.digest for each in brought.counted))
            games = max(counts.games, sum(each.games for each in brought.counted))
            brought.shards.append(_games_elsewhere(artifact, games, counts.rows, job, report, at_s))
        brought.samples.append(
            Samples(
                digest=artifact.digest,
                job_id=job.job_id,
                rows=counts.rows,
                games=counts.games,
                shards=shards,
                made_s=at_s,
                rows_generated=int(job.order.params.get("rows_generated", 0)),
                games_known=sum(each.games for each in brought.counted),
                written_s=job.order.params.get(WRITTEN),
            )
        )
    return brought


def samples_without_games(state: ConfigState, games: int, *, written_s: float) -> Samples | None:
    """The oldest samples of others that can hold *games* of a file written then, and lack so many still."""
    return next(
        (
            each
            for each in state.samples.values()
            if each.written_s is not None
            and written_s <= each.written_s
            and games <= each.games - each.games_known
        ),
        None,
    )


def _without_samples(state: ConfigState, games: int) -> list[Shard]:
    """The oldest games of others that no samples hold yet, as many as a file of *games* can be made of."""
    found: list[Shard] = []
    for shard in state.shards.values():
        if sum(each.games for each in found) >= games:
            break
        is_there = shard.state in (ShardState.UNCHECKED, ShardState.CHECKED)
        if shard.worker == OUTSIDE and is_there and shard.digest not in state.sampled:
            found.append(shard)
    return found


def _games_elsewhere(
    artifact: JobArtifact, games: int, rows: int, job: OpenJob, report: JobReport, at_s: float
) -> Shard:
    return Shard(
        digest=artifact.digest,
        job_id=job.job_id,
        name=artifact.name,
        state=ShardState.CHECKED,
        games=games,
        rows=rows,
        model=None,
        simulations=0,
        worker=report.worker,
        made_s=at_s,
        cpu_s=0.0,
    )


def _train(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    weights = _artifacts(report, "model")[-1]
    card = _artifacts(report, "card")[-1]
    checkpoints = _artifacts(report, "checkpoint")
    files = tuple(digest for digest in job.order.inputs.values() if digest in state.samples)
    if not files:
        raise ConfigError(f"{job.job_id} was trained on samples that are not known")
    parent = job.order.inputs.get(f"parent{WEIGHTS_SUFFIX}")
    fields = report.fields
    steps = read_fields(fields, _TrainFields, "the result").steps * int(job.order.params.get("batch", 0))
    before = None if parent is None else state.player(parent)
    is_student = job.stage != job.kind
    family = state.students if is_student else state.models
    ended = ModelState.PRODUCTION if is_student else ModelState.EVALUATING
    model = Model(
        digest=weights.digest,
        card=card.digest,
        job_id=job.job_id,
        number=len(family) + 1,
        parent=parent,
        samples=files[-1],
        sample_files=files,
        rows_seen=steps + (0 if before is None else before.rows_seen),
        # A network that begins anew sees the window as often as it takes; new rows pay for one chunk of that.
        steps_spent=steps if parent is not None else min(steps, state.bucket_rules.chunk_steps),
        losses=_learned(fields),
        made_s=at_s,
        state=ended,
        history=[
            (job.issued_s, str(ModelState.TRAINING), job.reason),
            (at_s, str(ended), "trained"),
        ],
        preset=str(job.order.params.get("preset", "")),
        purpose=job.order.purpose if is_student else "",
        checkpoint=checkpoints[-1].digest if checkpoints else "",
    )
    return _Brought(students=[model]) if is_student else _Brought(models=[model])


def _learned(fields: dict[str, Any]) -> dict[str, Any]:
    """Losses and the like; another's trainer may say nothing of them, or something else by the same name."""
    found: dict[str, Any] = {}
    for name, kind in _LEARNED.items():
        if name in fields:
            with suppress(msgspec.ValidationError):
                convert_to(fields[name], kind | None)
                found[name] = fields[name]
    return found


def _artifacts(report: JobReport, kind: str) -> list[JobArtifact]:
    return [each for each in report.artifacts if each.kind == kind]


_NEEDED = {
    "selfplay": (("shard", "unfinished"),),  # at least one of them
    "export": (("samples",),),
    "train": (("model",), ("card",)),
}


def _evaluate(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    return _Brought(matches=evaluation_matches(state, job, report, at_s))


def _tournament(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    return _Brought(matches=tournament_matches(state, job, report, at_s))


_READ: dict[str, Callable[[ConfigState, OpenJob, JobReport, float], _Brought]] = {
    "selfplay": _selfplay,
    "validate": _validate,
    "export": _export,
    "train": _train,
    "evaluate": _evaluate,
    "tournament": _tournament,
    "recompute": _recompute,
}
