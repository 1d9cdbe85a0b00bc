"""The `validate` job: replays shards, refuses what breaks the rules, and scores the rest.

A shard is sealed, so findings go into a report beside it, which names the shard by its hash. Exit code 4
if any game or shard was refused; the report is written all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import msgspec
import structlog

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.registry import load_game
from ringrift.jobs.checking import CheckedGame, SeenGames, checked_games
from ringrift.jobs.exit_codes import ExitCode
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.params import Params
from ringrift.jobs.quality import GameTraits, diversities, quality_category, quality_score
from ringrift.jobs.sealing import describe, file_sha256, seal_json
from ringrift.jobs.shards.reader import open_shard

REPORT_SUFFIX = ".report.json"
REPORT_VERSION = 1
KNOWN_SOURCES = ("selfplay", "evaluation", "tournament")

log = structlog.get_logger()


class ValidateParams(Params, frozen=True, kw_only=True):
    """Parameters of `validate`."""

    shards: Annotated[tuple[Path, ...], msgspec.Meta(min_length=1, description="Shards to check.")]
    out: Annotated[
        Path | None, msgspec.Meta(description="Folder of the reports; beside each shard if none.")
    ] = None
    moves_min: Annotated[int, msgspec.Meta(ge=0, description="Refuse games with fewer moves.")] = 5
    optimal_moves: (
        Annotated[
            float, msgspec.Meta(gt=0, description="Length that scores best; the shard's median if none.")
        ]
        | None
    ) = None


class AcceptedGame(msgspec.Struct, frozen=True):
    """A game that agrees with the rules."""

    game_id: str
    quality: float
    rows: int


class RefusedGame(msgspec.Struct, frozen=True):
    """A game that nobody should learn from, and why."""

    game_id: str
    reason: str
    detail: str
    move: int | None


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one shard."""

    version: int
    shard: str
    sha256: str
    config: str
    games: int
    rows: int
    quality: float | None
    categories: dict[str, int]
    reasons: dict[str, int]
    accepted: tuple[AcceptedGame, ...]
    refused: tuple[RefusedGame, ...]


def report_path(shard: Path, folder: Path | None) -> Path:
    return (folder or shard.parent) / (shard.name + REPORT_SUFFIX)


def run_validate(job: Job, params: ValidateParams) -> Outcome:
    seen = SeenGames()
    reports: list[ShardReport] = []
    damaged: list[dict[str, str]] = []
    job.stage("replaying", total=len(params.shards))
    for number, path in enumerate(params.shards):
        if job.stop.requested:
            return Outcome(ExitCode.STOPPED, _totals(reports, damaged))
        try:
            report = validate_shard(path, seen=seen, params=params)
        except Corrupt as error:
            log.warning("validate.shard_refused", shard=str(path), what=str(error))
            damaged.append({"shard": str(path), "why": str(error)})
        else:
            reports.append(report)
            target = report_path(path, params.out)
            seal_json(target, report)
            job.sealed(describe(target, "report", games=report.games, refused=len(report.refused)))
        job.progress(number + 1, games=sum(each.games for each in reports))
    totals = _totals(reports, damaged)
    fine = not damaged and not totals["refused"]
    return Outcome(ExitCode.DONE if fine else ExitCode.DATA_REFUSED, totals)


def validate_shard(path: Path, *, seen: SeenGames, params: ValidateParams) -> ShardReport:
    """Check one shard; raises `Corrupt` if the file itself is not sound."""
    with open_shard(path) as shard:
        config = shard.metadata.get("config_key")
        if config is None:
            raise Corrupt(path, found="it does not say of which config it is", advice="Write the games again")
        try:
            game = load_game(config)
        except ConfigError as error:
            raise Corrupt(path, found=str(error), advice="Install the package that has this game") from None
        found = _Findings()
        for checked in checked_games(game, shard.games(), seen=seen, moves_min=params.moves_min):
            found.add(checked)
        promised = int(shard.metadata.get("games", "-1"))
    games = len(found.fine) + len(found.refused)
    if promised != games:
        raise Corrupt(path, found=f"{games} of {promised} games are there", advice="Fetch it again")
    accepted, refused = found.scored(params.optimal_moves), tuple(found.refused)
    return ShardReport(
        version=REPORT_VERSION,
        shard=path.name,
        sha256=file_sha256(path),
        config=config,
        games=games,
        rows=sum(each.rows for each in accepted),
        quality=round(fmean(each.quality for each in accepted), 4) if accepted else None,
        categories=dict(Counter(quality_category(each.quality) for each in accepted)),
        reasons=dict(Counter(each.reason for each in refused)),
        accepted=accepted,
        refused=refused,
    )


class _Findings:
    """Collects what a report needs of each game, so that policies need not stay in memory."""

    def __init__(self) -> None:
        self.fine: list[tuple[str, int, GameTraits]] = []
        self.refused: list[RefusedGame] = []

    def add(self, checked: CheckedGame) -> None:
        fault, stored = checked.fault, checked.stored
        if fault is not None:
            self.refused.append(RefusedGame(checked.game_id, fault.reason, fault.detail, fault.move))
            return
        assert stored is not None
        played, moves = stored.game, stored.moves
        traits = GameTraits(
            decisive=played.winner is not None,
            actions=played.actions,
            kinds=tuple(phase or kind for phase, kind in zip(moves.phases, moves.types, strict=True)),
            source_known=played.source in KNOWN_SOURCES,
        )
        self.fine.append((checked.game_id, played.rows, traits))

    def scored(self, optimal_moves: float | None) -> tuple[AcceptedGame, ...]:
        if not self.fine:
            return ()
        actions = [traits.actions for _, _, traits in self.fine]
        optimal = optimal_moves or median(map(len, actions))
        return tuple(
            AcceptedGame(
                game_id, round(quality_score(traits, optimal_moves=optimal, diversity=different), 4), rows
            )
            for (game_id, rows, traits), different in zip(self.fine, diversities(actions), strict=True)
        )


def _totals(reports: Sequence[ShardReport], damaged: Sequence[dict[str, str]]) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.reasons)
    qualities = [each.quality for report in reports for each in report.accepted]
    return {
        "shards": len(reports),
        "games": sum(report.games for report in reports),
        "accepted": len(qualities),
        "refused": sum(len(report.refused) for report in reports),
        "rows": sum(report.rows for report in reports),
        "reasons": dict(reasons),
        "quality": round(fmean(qualities), 4) if qualities else None,
        "damaged": list(damaged),
    }


VALIDATE = JobSpec(
    "validate", "Replay shards by the rules and score the games.", ValidateParams, run_validate
)


def main(argv: Sequence[str]) -> int:
    return run_job(VALIDATE, argv)
