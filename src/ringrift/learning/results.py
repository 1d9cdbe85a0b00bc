"""From a job's report to records: what each kind of job adds to the state of its config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ringrift.learning.records import Match, Model, ModelState, Samples, Shard, ShardState
from ringrift.learning.trust import is_recalled
from ringrift.work.job_orders import INPUTS, JobArtifact, JobReport

if TYPE_CHECKING:
    from ringrift.learning.state import ConfigState, OpenJob

WEIGHTS_SUFFIX = ".safetensors"
_MODEL = "model:"


def take_in(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    """Add what *job* brought. A kind that brings nothing to the state (a tuning run) is only counted."""
    if (take := _TAKE_IN.get(job.kind)) is not None:
        take(state, job, report, at_s)


def match_with(match: Match, **changes: Any) -> Match:
    return msgspec.structs.replace(match, **changes)


def _selfplay(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    shards = _artifacts(report, "shard")
    state.totals["cut_off"] += int(report.fields.get("cut_off", 0))  # too long, without a result
    for artifact in shards:
        state.add_shard(
            Shard(
                digest=artifact.digest,
                job_id=job.job_id,
                name=artifact.name,
                state=ShardState.UNCHECKED,
                games=_count(artifact, "games"),
                rows=_count(artifact, "rows"),
                model=report.fields.get("generator_sha256"),
                simulations=int(job.order.params.get("simulations", 0)),
                worker=report.worker,
                made_s=at_s,
                cpu_s=report.cpu_s / len(shards),
            )
        )


def _validate(state: ConfigState, job: OpenJob, report: JobReport, _at_s: float) -> None:
    """Shards that the report doesn't name as checked were damaged, and are refused whole."""
    checked = {str(each.counts.get("shard")): each for each in _artifacts(report, "report")}
    for digest in job.order.inputs.values():
        shard = state.shards.get(digest)
        if shard is None or shard.state is not ShardState.UNCHECKED:
            continue
        found = checked.get(digest)
        if found is None:
            state.set_shard(
                shard,
                state=ShardState.REFUSED,
                games=0,
                rows=0,
                refused=shard.games,
                reasons={"damaged": shard.games},
            )
            continue
        counts = found.counts
        games = _count(found, "games") - _count(found, "refused")
        state.set_shard(
            shard,
            state=ShardState.CHECKED if games else ShardState.REFUSED,
            games=games,
            rows=_count(found, "rows"),
            refused=_count(found, "refused"),
            reasons=dict(counts.get("reasons", {})),
            quality=counts.get("quality"),
            report=found.digest,
        )


def _export(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    for artifact in _artifacts(report, "samples"):
        shards = tuple(d for name, d in job.order.inputs.items() if not name.endswith(".report.json"))
        state.samples[artifact.digest] = Samples(
            digest=artifact.digest,
            job_id=job.job_id,
            rows=_count(artifact, "rows"),
            games=_count(artifact, "games"),
            shards=shards,
            made_s=at_s,
            rows_generated=int(job.order.params.get("rows_generated", 0)),
        )


def _train(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    weights = _artifacts(report, "model")[-1]
    card = _artifacts(report, "card")[-1]
    samples = state.samples[job.order.inputs["samples.npz"]]
    parent = job.order.inputs.get(f"parent{WEIGHTS_SUFFIX}")
    fields = report.fields
    steps = int(fields.get("steps", 0)) * int(job.order.params.get("batch", 0))
    before = state.models[parent].rows_seen if parent in state.models else 0
    state.spend(steps)
    state.models[weights.digest] = Model(
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


LOSS_FIELDS = ("train", "held", "best_held", "calibration", "samples_per_s")


def _evaluate(state: ConfigState, job: OpenJob, report: JobReport, at_s: float) -> None:
    order = job.order
    first, simulations = participant(str(order.params["candidate"]), order.inputs)
    recalls = [each for each in state.recalls.values() if not each.withdrawn]
    for found in report.fields.get("matches", []):
        second, _ = participant(str(found["opponent"]), order.inputs)
        pairs = found.get("pairs")
        state.matches.append(
            Match(
                job_id=job.job_id,
                first=first,
                second=second,
                simulations=simulations,
                players=int(found.get("players", 2)),
                games=int(found["games"]),
                wins=int(found["wins"]),
                draws=int(found["draws"]),
                losses=int(found["losses"]),
                pairs=None if not pairs else tuple(pairs),
                places=tuple(found.get("places", ())),
                score=float(found["score"]),
                at_s=at_s,
                worker=report.worker,
                purpose=order.purpose,
                recalled=is_recalled(recalls, worker=report.worker, models=(first, second), at_s=at_s),
            )
        )


def participant(text: str, inputs: dict[str, str]) -> tuple[str, int]:
    """Who plays under a player's text, and with how many simulations: a model by its digest."""
    name, _, simulations = text.rpartition("@")
    if not name.startswith(_MODEL):
        return text, 0
    file = name.removeprefix(_MODEL).rpartition("/")[2]
    return inputs[file], int(simulations)


def player_text(file: str, simulations: int) -> str:
    """The text under which a model among the inputs plays."""
    return f"{_MODEL}{INPUTS}/{file}@{simulations}"


def problem_with(job: OpenJob, report: JobReport) -> str:
    """Why *report* cannot be the answer to *job*; empty if it can. Asked before it becomes a fact."""
    for kind in _NEEDED.get(job.kind, ()):
        if not _artifacts(report, kind):
            return f"the job ended well but brought no {kind}"
    if job.kind != "evaluate":
        return ""
    matches = report.fields.get("matches") or []
    missing = sorted({name for found in matches for name in _MATCH_FIELDS if name not in found})
    if missing:
        return f"a match lacks {', '.join(missing)}"
    if not matches or not all(found["games"] for found in matches):
        return "no games were played"
    return ""


def _artifacts(report: JobReport, kind: str) -> list[JobArtifact]:
    return [each for each in report.artifacts if each.kind == kind]


def _count(artifact: JobArtifact, name: str) -> int:
    return int(artifact.counts.get(name, 0))


_NEEDED = {
    "selfplay": ("shard",),
    "export": ("samples",),
    "train": ("model", "card"),
}
_MATCH_FIELDS = ("opponent", "games", "wins", "draws", "losses", "score")

_TAKE_IN: dict[str, Callable[[ConfigState, OpenJob, JobReport, float], None]] = {
    "selfplay": _selfplay,
    "validate": _validate,
    "export": _export,
    "train": _train,
    "evaluate": _evaluate,
}
