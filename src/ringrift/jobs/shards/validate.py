"""The `validate` job: replays shards, refuses what breaks the rules, and scores the rest.

A shard is sealed, so findings go into a report beside it, which names the shard by its hash. Exit code 4
if any game or shard was refused; the report is written all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import structlog

from ringrift.errors import ConfigError, Corrupt
from ringrift.files import file_sha256
from ringrift.games.registry import load_game
from ringrift.jobs.files import describe, scratch_database, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.shards.checking import (
    CheckedGame,
    GameTraits,
    QualityScores,
    SeenGames,
    checked_games,
    quality_category,
)
from ringrift.jobs.shards.storage import open_shard

REPORT_SUFFIX = ".report.json"
REPORT_VERSION = 1
KNOWN_SOURCES = ("selfplay", "evaluation", "tournament")

_REFUSED = "CREATE TABLE refused (game_id TEXT, reason TEXT, detail TEXT, move INTEGER)"

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
    totals = _Totals()
    job.stage("replaying", total=len(params.shards))
    with SeenGames() as seen:
        for number, path in enumerate(params.shards):
            # Between shards: what is sealed counts, and the rest is checked by the next job.
            if job.stop.requested:
                return Outcome(ExitCode.STOPPED, totals.as_json())
            try:
                with checked_shard(path, seen=seen, params=params) as found:
                    report = _report(path, found)
            # One damaged file must not keep the others from being checked.
            except Corrupt as error:
                log.warning("validate.shard_refused", shard=str(path), what=str(error))
                totals.damaged.append({"shard": str(path), "why": str(error)})
            else:
                target = report_path(path, params.out)
                seal_json(target, report)
                job.sealed(describe(target, "report", **_counts(report)))
                totals.add(path, report, target)
            job.progress(number + 1, games=totals.games)
    return Outcome(ExitCode.DONE if totals.fine else ExitCode.DATA_REFUSED, totals.as_json())


class ShardFindings:
    """What the replay of one shard found. Games are kept on disk, so a shard may hold any number."""

    def __init__(self, config: str, scores: QualityScores, *, optimal_moves: float | None) -> None:
        self.config, self.reasons = config, Counter[str]()
        self._scores, self._optimal_moves = scores, optimal_moves
        # on disk, as a hostile shard may have millions of bad games
        self._refused = scratch_database(_REFUSED)

    def close(self) -> None:
        self._refused.close()

    @property
    def games(self) -> int:
        return len(self._scores) + self.reasons.total()

    def accepted(self) -> Iterator[AcceptedGame]:
        """Games that agree with the rules, scored against each other."""
        for each in self._scores.scored(self._optimal_moves):
            yield AcceptedGame(each.name, each.quality, each.rows)

    def refused(self) -> Iterator[RefusedGame]:
        for row in self._refused.execute("SELECT * FROM refused ORDER BY rowid"):
            yield RefusedGame(*row)

    def add(self, checked: CheckedGame) -> None:
        fault, stored = checked.fault, checked.stored
        if fault is not None:
            self.reasons[fault.reason] += 1
            row = (checked.game_id, fault.reason, fault.detail, fault.move)
            self._refused.execute("INSERT INTO refused VALUES (?, ?, ?, ?)", row)
            return
        assert stored is not None
        played, moves = stored.game, stored.moves
        traits = GameTraits(
            decisive=played.winner is not None,
            actions=played.actions,
            # games without phases have only kinds of moves
            kinds=[phase or kind for phase, kind in zip(moves.phases, moves.types, strict=True)],
            source_known=played.source in KNOWN_SOURCES,
        )
        self._scores.add(checked.game_id, traits, rows=played.rows)


@contextmanager
def checked_shard(path: Path, *, seen: SeenGames, params: ValidateParams) -> Iterator[ShardFindings]:
    """Replay one shard; raises `Corrupt` if the file itself is not sound."""
    with open_shard(path) as shard, QualityScores() as scores:
        config = shard.metadata.get("config_key")
        if config is None:
            raise Corrupt(path, found="it does not say of which config it is", advice="Write the games again")
        # Before a game is noted as seen: a shard that is refused must not make others look like copies of it.
        there, promised = shard.game_count, shard.metadata.get("games", "no")
        if promised != str(there):
            problem = f"{there} of {promised[:20]} games are there"
            raise Corrupt(path, found=problem, advice="Fetch it again")
        try:
            game = load_game(config)
        except ConfigError as error:
            raise Corrupt(path, found=str(error), advice="Install the package that has this game") from None
        found = ShardFindings(config, scores, optimal_moves=params.optimal_moves)
        with closing(found):
            for checked in checked_games(game, shard.games(), seen=seen, moves_min=params.moves_min):
                found.add(checked)
            yield found


def _report(path: Path, found: ShardFindings) -> ShardReport:
    accepted, refused = tuple(found.accepted()), tuple(found.refused())
    return ShardReport(
        version=REPORT_VERSION,
        shard=path.name,
        # The report is about these bytes: whoever uses it compares.
        sha256=file_sha256(path),
        config=found.config,
        games=found.games,
        rows=sum(each.rows for each in accepted),
        quality=round(fmean(each.quality for each in accepted), 4) if accepted else None,
        categories=dict(Counter(quality_category(each.quality) for each in accepted)),
        reasons=dict(found.reasons),
        accepted=accepted,
        refused=refused,
    )


def _counts(report: ShardReport) -> dict[str, Any]:
    """What a controller needs to know of a shard without opening the report."""
    return {
        "shard": report.sha256,
        "games": report.games,
        "refused": len(report.refused),
        "rows": report.rows,
        "reasons": report.reasons,
        "quality": report.quality,
    }


class _Totals:
    """Sums over all shards; what each game was refused for is in the shard's report."""

    def __init__(self) -> None:
        self.games = self._accepted = self._rows = 0
        self._quality = 0.0
        self._reasons: Counter[str] = Counter()
        self._shards: list[dict[str, Any]] = []
        self.damaged: list[dict[str, str]] = []

    @property
    def fine(self) -> bool:
        return not self.damaged and not self._reasons

    def add(self, path: Path, report: ShardReport, written: Path) -> None:
        self.games += report.games
        self._accepted += len(report.accepted)
        self._rows += report.rows
        self._quality += sum(each.quality for each in report.accepted)
        self._reasons.update(report.reasons)
        self._shards.append(
            {
                "shard": str(path),
                "sha256": report.sha256,
                "report": str(written),
                "accepted": len(report.accepted),
                "refused": len(report.refused),
                "rows": report.rows,
            }
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "games": self.games,
            "accepted": self._accepted,
            "refused": self._reasons.total(),
            "rows": self._rows,
            "reasons": dict(self._reasons),
            "quality": round(self._quality / self._accepted, 4) if self._accepted else None,
            "shards": self._shards,
            "damaged": list(self.damaged),
        }


VALIDATE = JobSpec(
    "validate", "Replay shards by the rules and score the games.", ValidateParams, run_validate
)


def main(argv: Sequence[str]) -> int:
    return run_job(VALIDATE, argv)
