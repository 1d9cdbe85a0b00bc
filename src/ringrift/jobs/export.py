"""The `export` job: validated games of a window, as one file of training samples.

Every game is replayed before it is taken: by this job, or earlier by `validate` if its report names the
shard by hash. The file is checked before it gets its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.checking import SeenGames
from ringrift.jobs.exit_codes import ExitCode
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.params import Params
from ringrift.jobs.samples.from_games import Marks, Teaching, game_samples
from ringrift.jobs.samples.layout import Codes, scalars
from ringrift.jobs.samples.npz_check import check_samples
from ringrift.jobs.samples.npz_writer import SampleWriter
from ringrift.jobs.samples.window import DAY_S, PlannedGame, PowerWindow, game_weights, newest
from ringrift.jobs.sealing import describe, file_sha256, read_json, sealing
from ringrift.jobs.shards.reader import GameSummary, open_shard
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.validate import ShardReport, ValidateParams, validate_shard


class ExportParams(Params, frozen=True, kw_only=True):
    """Parameters of `export`."""

    shards: Annotated[tuple[Path, ...], msgspec.Meta(min_length=1, description="Shards to take games from.")]
    out: Annotated[Path, msgspec.Meta(description="The NPZ file to write.")]
    reports: Annotated[
        tuple[Path, ...],
        msgspec.Meta(description="Reports of `validate`; other shards are replayed here."),
    ] = ()
    window: Annotated[
        Literal["all", "rows", "power"],
        msgspec.Meta(description="Take all games, the newest --window-rows, or the power law of all rows."),
    ] = "all"
    window_rows: Annotated[int, msgspec.Meta(ge=1, description="Rows of the window `rows`.")] = 250_000
    window_a: Annotated[float, msgspec.Meta(description="Exponent of the power law.")] = 0.75
    window_b: Annotated[float, msgspec.Meta(description="Slope of the power law at its start.")] = 0.4
    window_c: Annotated[float, msgspec.Meta(description="Rows up to which all are kept.")] = 250_000.0
    rows_generated: (
        Annotated[
            int,
            msgspec.Meta(ge=0, description="Rows ever generated; those given if none."),
        ]
        | None
    ) = None
    rows_max: Annotated[int, msgspec.Meta(ge=1, description="Never more rows than this.")] = 500_000
    half_life_days: Annotated[
        float, msgspec.Meta(ge=0, description="Age at which a game counts half; 0 for no ageing.")
    ] = 3.0
    value_mix: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Share of the search's value in the value target.")
    ] = 0.0
    symmetries: Annotated[bool, msgspec.Meta(description="Write every sample in all symmetries.")] = False
    moves_min: Annotated[int, msgspec.Meta(ge=0, description="Refuse games with fewer moves.")] = 5
    quality_min: Annotated[float, msgspec.Meta(ge=0, le=1, description="Leave out games below.")] = 0.0
    budget_min: Annotated[
        int, msgspec.Meta(ge=0, description="Leave out games searched with fewer simulations, or with none.")
    ] = 0
    compress: Annotated[bool, msgspec.Meta(description="Deflate the arrays.")] = True
    now_s: Annotated[float, msgspec.Meta(description="When ages end; now if none.")] | None = None


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What goes into the file."""

    games: list[PlannedGame]
    marks: dict[str, Marks]
    rows: int
    rows_offered: int
    refused: dict[str, int]


def run_export(job: Job, params: ExportParams) -> Outcome:
    game = load_game(_config_of(params.shards))
    now_s = job.runtime.now_s() if params.now_s is None else params.now_s
    games, refused = candidates(job, params)
    plan = make_plan(params, games, refused, now_s=now_s)
    if not plan.rows:
        raise Corrupt(
            params.out, found=f"no game to learn from ({plan.refused})", advice="Nothing was written"
        )
    with sealing(params.out) as part:
        _write(job, params, game, plan, part, now_s=now_s)
        job.stage("checking")
        check = check_samples(part, game=game)
        if not check.valid:
            raise Corrupt(part, found="; ".join(check.errors), advice="Check the disk and export again")
    counts = {"rows": check.sample_count, "games": len(plan.games)}
    job.sealed(describe(params.out, "samples", config=game.key, **counts))
    told = {**counts, "rows_offered": plan.rows_offered, "refused": plan.refused, "warnings": check.warnings}
    return Outcome(ExitCode.DONE, told)


def candidates(job: Job, params: ExportParams) -> tuple[list[PlannedGame], Counter[str]]:
    """All games that agree with the rules and fulfil the limits, once each; and why others do not."""
    reports = {report.sha256: report for report in map(_read_report, params.reports)}
    checks = ValidateParams(shards=params.shards, moves_min=params.moves_min)
    seen = SeenGames()
    games: list[PlannedGame] = []
    refused: Counter[str] = Counter()
    job.stage("validating", total=len(params.shards))
    for number, path in enumerate(params.shards):
        job.stop_point()
        report = reports.get(file_sha256(path)) or validate_shard(path, seen=SeenGames(), params=checks)
        refused.update(report.reasons)
        qualities = {each.game_id: each.quality for each in report.accepted}
        with open_shard(path) as shard:
            for summary in shard.summaries():
                if summary.game_id not in qualities:
                    continue
                quality = qualities[summary.game_id]
                reason = _left_out(summary, quality, params) or seen.reason_of(summary)
                if reason:
                    refused[reason] += 1
                else:
                    games.append(_planned(number, summary, quality))
        job.progress(number + 1, games=len(games))
    return games, refused


def _left_out(summary: GameSummary, quality: float, params: ExportParams) -> str:
    if not summary.rows:
        return "no_policies"
    if summary.total_moves < params.moves_min:
        return "too_short"
    if quality < params.quality_min:
        return "low_quality"
    if (summary.search_budget or 0) < params.budget_min:
        return "low_budget"
    return ""


def _planned(shard: int, summary: GameSummary, quality: float) -> PlannedGame:
    return PlannedGame(
        shard, summary.game_id, summary.rows, summary.completed_s, summary.engine_mode, quality
    )


def make_plan(
    params: ExportParams, games: list[PlannedGame], refused: Counter[str], *, now_s: float
) -> ExportPlan:
    """Choose the window and weigh it."""
    offered = sum(game.rows for game in games)
    rows_max = params.rows_max
    if params.window == "rows":
        rows_max = min(rows_max, params.window_rows)
    elif params.window == "power":
        window = PowerWindow(params.window_a, params.window_b, params.window_c)
        rows_max = min(rows_max, window.rows(params.rows_generated or offered))
    kept = newest(games, rows_max)
    half_life_s = params.half_life_days * DAY_S or None
    weights = game_weights(kept, now_s=now_s, half_life_s=half_life_s)
    outside = len(games) - len(kept)
    return ExportPlan(
        games=kept,
        marks={game.game_id: Marks(weight, game.quality) for game, weight in zip(kept, weights, strict=True)},
        rows=sum(game.rows for game in kept),
        rows_offered=offered,
        refused={**refused, **({"outside_window": outside} if outside else {})},
    )


def _write(job: Job, params: ExportParams, game: Game, plan: ExportPlan, part: Path, *, now_s: float) -> None:
    symmetries = tuple(range(game.symmetries)) if params.symmetries else (0,)
    teaching = Teaching(symmetries, params.value_mix)
    rows, codes = plan.rows * len(symmetries), Codes()
    written = index_max = 0
    job.stage("writing", total=rows)
    with SampleWriter(part, game, rows=rows, compress=params.compress) as writer:
        for number, path in enumerate(params.shards):
            wanted = {each.game_id for each in plan.games if each.shard == number}
            stored = _wanted_games(path, wanted)
            for columns in game_samples(game, stored, plan.marks, teaching=teaching, codes=codes):
                job.stop_point()
                writer.add(columns)
                written += len(columns["values"])
                index_max = max(index_max, int(columns["policy_indices"].max()))
                job.progress(written)
        metadata = {
            "export_time": now_s,
            "newest_game_time": max(each.completed_s for each in plan.games),
            "game_count": len(plan.games),
            "sample_count": rows,
            "rows_offered": plan.rows_offered,
            "window": params.window,
            "value_mix": params.value_mix,
            "shards": [file_sha256(path) for path in params.shards],
        }
        texts = {"metadata": json.dumps(metadata), "codes": json.dumps(codes.as_json())}
        writer.finish({**scalars(game, rows=rows, policy_index_max=index_max), **texts})


def _wanted_games(path: Path, wanted: set[str]) -> Iterator[StoredGame]:
    if not wanted:
        return
    with open_shard(path) as shard:
        for stored in shard.games():
            if isinstance(stored, StoredGame) and stored.game.game_id in wanted:
                yield stored


def _config_of(shards: Sequence[Path]) -> str:
    """The one config that all shards are of."""
    configs: dict[str, Path] = {}
    for path in shards:
        with open_shard(path) as shard:
            configs.setdefault(shard.metadata.get("config_key", "unknown"), path)
    if len(configs) > 1:
        told = ", ".join(f"{config} ({path.name})" for config, path in configs.items())
        raise ConfigError(f"shards of several configs cannot go into one file: {told}")
    return next(iter(configs))


def _read_report(path: Path) -> ShardReport:
    try:
        return msgspec.convert(read_json(path), ShardReport)
    except msgspec.ValidationError as error:
        raise Corrupt(path, found=f"no report: {error}", advice="Validate the shard again") from None


EXPORT = JobSpec("export", "Turn validated games into training samples.", ExportParams, run_export)


def main(argv: Sequence[str]) -> int:
    return run_job(EXPORT, argv)
