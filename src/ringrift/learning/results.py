"""From a job's report to records: what each kind of job adds to the state of its config.

Reading is apart from adding, so that a report can be tried before it becomes a fact: a job may be anybody's
program, and a fact that cannot be taken in would stop every later start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from ringrift.errors import ConfigError
from ringrift.learning.records import Match, Model, ModelState, Samples, Shard, ShardState
from ringrift.learning.trust import is_recalled
from ringrift.work.job_orders import INPUTS, JobArtifact, JobReport

if TYPE_CHECKING:
    from ringrift.learning.state import ConfigState, OpenJob

WEIGHTS_SUFFIX = ".safetensors"
LOSS_FIELDS = ("train", "held", "best_held", "calibration", "samples_per_s")
DATA_REFUSED = "data_refused"
_MODEL = "model:"
_PAIR_COUNTS = 5

Count = Annotated[int, msgspec.Meta(ge=0)]
PairCounts = tuple[int, int, int, int, int]
T = TypeVar("T")


# --- what a report has to say -----------------------------------------------------------------------------


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a file of games or samples."""

    games: Count = 0
    rows: Count = 0


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


class _Played(msgspec.Struct, frozen=True, kw_only=True):
    """One match of an evaluation."""

    opponent: str
    games: Count
    wins: Count
    draws: Count
    losses: Count
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    players: Annotated[int, msgspec.Meta(ge=2)] = 2
    pairs: tuple[Count, ...] | None = None
    places: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        if self.wins + self.draws + self.losses > self.games:
            raise ValueError(f"{self.wins} + {self.draws} + {self.losses} results of {self.games} games")
        if self.pairs and (len(self.pairs) != _PAIR_COUNTS or 2 * sum(self.pairs) > self.games):
            raise ValueError(f"pairs {list(self.pairs)} of {self.games} games")
        if self.players > 2 and (len(self.places) != self.players or sum(self.places) > self.games):
            raise ValueError(f"places {list(self.places)} of {self.games} games for {self.players} players")


class _SelfplayFields(msgspec.Struct, frozen=True, kw_only=True):
    generator_sha256: str | None = None
    cut_off: Count = 0  # too long, without a result


class _TrainFields(msgspec.Struct, frozen=True, kw_only=True):
    steps: Count = 0
    best_step: Count = 0


class _EvaluateFields(msgspec.Struct, frozen=True, kw_only=True):
    matches: tuple[_Played, ...] = ()


@dataclass(slots=True)
class _Brought:
    """What a report adds."""

    shards: list[Shard] = field(default_factory=list)
    checks: list[tuple[Shard, dict[str, Any]]] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    cut_off: int = 0


# --- adding and refusing ----------------------------------------------------------------------------------


def take_in(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    """Add what *job* brought. A kind that brings nothing to the state (a tuning run) is only counted."""
    if (read := _READ.get(job.kind)) is None:
        return
    brought = read(state, job, report, at_s)
    state.totals["cut_off"] += brought.cut_off
    for shard in brought.shards:
        state.add_shard(shard)
    for shard, found in brought.checks:
        state.set_shard(shard, **found)
    for samples in brought.samples:
        state.samples.pop(samples.digest, None)  # made again, it is the newest
        state.samples[samples.digest] = samples
    for model in brought.models:
        state.spend(model.steps_spent)
        state.models[model.digest] = model
    state.matches += brought.matches


def problem_with(state: ConfigState, job: OpenJob, report: JobReport) -> str:
    """Why *report* cannot be the answer to *job*; empty if it can. Asked before it becomes a fact."""
    if min(report.wall_s, report.cpu_s, report.gpu_s) < 0:
        return "the report counts time below zero"
    for kind in _NEEDED.get(job.kind, ()):
        if not _artifacts(report, kind):
            return f"the job ended well but brought no {kind}"
    read = _READ.get(job.kind)
    try:
        brought = _Brought() if read is None else read(state, job, report, 0.0)
    except ConfigError as error:
        return str(error)
    if job.kind == "validate" and report.status != DATA_REFUSED and not _named_shards(job, report):
        return "the check names none of the shards that it was given"
    known = [model for model in brought.models if model.digest in state.models]
    if known:
        return f"the training changed nothing: it brought model {known[0].digest[:12]} again"
    if job.kind == "evaluate" and not (brought.matches and all(match.games for match in brought.matches)):
        return "no games were played"
    return _unasked(job, brought.matches) if job.kind == "evaluate" else ""


def _unasked(job: OpenJob, matches: list[Match]) -> str:
    """Games that nobody ordered are no evidence."""
    asked = {participant(str(each), job.order.inputs)[0] for each in job.order.params.get("opponents", ())}
    strange = sorted({match.second for match in matches} - asked)
    return f"games against {', '.join(strange)} were not asked for" if strange else ""


def match_with(match: Match, **changes: Any) -> Match:
    return msgspec.structs.replace(match, **changes)


# --- reading ----------------------------------------------------------------------------------------------


def _selfplay(_state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    artifacts = _artifacts(report, "shard")
    told = _read(report.fields, _SelfplayFields, "the result")
    brought = _Brought(cut_off=told.cut_off)
    for artifact in artifacts:
        counts = _read(artifact.counts, _Rows, artifact.name)
        brought.shards.append(
            Shard(
                digest=artifact.digest,
                job_id=job.job_id,
                name=artifact.name,
                state=ShardState.UNCHECKED,
                games=counts.games,
                rows=counts.rows,
                model=told.generator_sha256,
                simulations=int(job.order.params.get("simulations", 0)),
                worker=report.worker,
                made_s=at_s,
                cpu_s=report.cpu_s / len(artifacts),
            )
        )
    return brought


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
        games = found.games - found.refused
        changes = {
            "state": ShardState.CHECKED if games else ShardState.REFUSED,
            "games": games,
            "rows": found.rows,
            "refused": found.refused,
            "reasons": dict(found.reasons),
            "quality": found.quality,
            "report": written.digest,
        }
        brought.checks.append((shard, changes))
    return brought


def _named_shards(job: OpenJob, report: JobReport) -> dict[str, tuple[_Check, JobArtifact]]:
    """The checks of shards that were among the inputs."""
    checks = [(_read(each.counts, _Check, each.name), each) for each in _artifacts(report, "report")]
    given = set(job.order.inputs.values())
    return {check.shard: (check, each) for check, each in checks if check.shard in given}


def _export(_state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    shards = tuple(d for name, d in job.order.inputs.items() if not name.endswith(".report.json"))
    brought = _Brought()
    for artifact in _artifacts(report, "samples"):
        counts = _read(artifact.counts, _Rows, artifact.name)
        brought.samples.append(
            Samples(
                digest=artifact.digest,
                job_id=job.job_id,
                rows=counts.rows,
                games=counts.games,
                shards=shards,
                made_s=at_s,
                rows_generated=int(job.order.params.get("rows_generated", 0)),
            )
        )
    return brought


def _train(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    weights = _artifacts(report, "model")[-1]
    card = _artifacts(report, "card")[-1]
    samples = state.samples.get(job.order.inputs.get("samples.npz", ""))
    if samples is None:
        raise ConfigError(f"{job.job_id} was trained on samples that are not known")
    parent = job.order.inputs.get(f"parent{WEIGHTS_SUFFIX}")
    fields = report.fields
    steps = _read(fields, _TrainFields, "the result").steps * int(job.order.params.get("batch", 0))
    before = state.models[parent].rows_seen if parent in state.models else 0
    model = Model(
        digest=weights.digest,
        card=card.digest,
        job_id=job.job_id,
        number=len(state.models) + 1,
        parent=parent,
        samples=samples.digest,
        shards=samples.shards,
        rows_seen=before + steps,
        steps_spent=steps,
        losses={name: fields[name] for name in LOSS_FIELDS if name in fields},
        made_s=at_s,
        state=ModelState.EVALUATING,
        history=[(at_s, str(ModelState.EVALUATING), "trained")],
    )
    return _Brought(models=[model])


def _evaluate(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> _Brought:
    order = job.order
    first, simulations = participant(str(order.params["candidate"]), order.inputs)
    recalls = [each for each in state.recalls.values() if not each.withdrawn]
    brought = _Brought()
    for found in _read(report.fields, _EvaluateFields, "the result").matches:
        second, _ = participant(found.opponent, order.inputs)
        brought.matches.append(
            Match(
                job_id=job.job_id,
                first=first,
                second=second,
                simulations=simulations,
                players=found.players,
                games=found.games,
                wins=found.wins,
                draws=found.draws,
                losses=found.losses,
                pairs=None if not found.pairs else msgspec.convert(found.pairs, PairCounts),
                places=found.places,
                score=found.score,
                at_s=at_s,
                worker=report.worker,
                purpose=order.purpose,
                recalled=is_recalled(recalls, worker=report.worker, models=(first, second), at_s=at_s),
            )
        )
    return brought


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


def _artifacts(report: JobReport, kind: str) -> list[JobArtifact]:
    return [each for each in report.artifacts if each.kind == kind]


def _read(told: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(told, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None


_NEEDED = {
    "selfplay": ("shard",),
    "export": ("samples",),
    "train": ("model", "card"),
}

_READ: dict[str, Callable[[ConfigState, OpenJob, JobReport, float], _Brought]] = {
    "selfplay": _selfplay,
    "validate": _validate,
    "export": _export,
    "train": _train,
    "evaluate": _evaluate,
}
