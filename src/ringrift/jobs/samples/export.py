"""The `export` job: validated games of a window, as one file of training samples.

Every game is replayed before it is taken: by this job, or earlier by `validate` if its report names the
shard by hash. The file is checked before it gets its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError, Corrupt
from ringrift.files import file_sha256
from ringrift.games.contract import Game, LegalActions, States, ragged_index
from ringrift.games.registry import load_game
from ringrift.jobs.files import alone, describe, read_json, sealing
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.samples.npz_files import (
    DRAW_WEIGHTS,
    FEATURES,
    SEATS_MAX,
    Codes,
    Columns,
    SampleWriter,
    Targets,
    check_samples,
    later_values,
    scalars,
)
from ringrift.jobs.samples.plan import (
    DAY_S,
    HOLD_OUT,
    Marks,
    PlannedGame,
    PlanTotals,
    PowerWindow,
    SamplePlan,
    game_hash,
    is_held_out,
)
from ringrift.jobs.shards.checking import (
    GAMES_AT_ONCE,
    BatchReplay,
    Numbers,
    RecordedMoves,
    ReplayStep,
    SeenGames,
    held_together,
    in_groups,
    joined_steps,
)
from ringrift.jobs.shards.records import RESIGNATION, Floats, StoredGame
from ringrift.jobs.shards.storage import MOVE_BYTES, GameSummary, open_shard
from ringrift.jobs.shards.validate import ShardReport, ValidateParams, checked_shard

# Games to samples: at every searched move what the player saw, what the search said, and how it ended.


BYTES_GATHERED = 1 << 20  # of samples, before they are handed on


@dataclass(frozen=True, slots=True)
class Teaching:
    """How games are turned into samples."""

    symmetries: Sequence[int]  # 0 alone leaves the board as it was played
    targets: Targets
    with_features: bool = True


MarkedGame = tuple[StoredGame, Marks]


def game_samples(
    game: Game,
    marked: Iterable[MarkedGame],
    *,
    teaching: Teaching,
    codes: Codes,
) -> Iterator[Columns]:
    """Samples of validated games, a bounded number at a time."""
    for group in held_together(marked, lambda each: each[0]):
        some = [stored for stored, _ in group]
        replay = BatchReplay(game, [each.game.actions for each in some])
        lessons = _Lessons(game, group, teaching, codes)
        gathered: list[ReplayStep] = []
        size = 0
        for step in replay.steps():
            if (searched := lessons.searched(step)) is not None:
                gathered.append(searched)
                size += lessons.size(searched)
            if size >= BYTES_GATHERED:
                yield from lessons.of(gathered)
                gathered, size = [], 0
        if gathered:
            yield from lessons.of(gathered)
        # A resigned game does not end by the rules; any other fault was to be found by the check before.
        for row, fault in replay.faults.items():
            name = some[row].game.game_id
            if fault.reason == "unfinished" and some[row].game.termination == RESIGNATION:
                continue
            raise Corrupt(name, found=f"{fault.reason}: {fault.detail}", advice="Validate the shard again")


class _Lessons:
    """The samples of some games: what is the same for all moves of a game is looked up once."""

    def __init__(self, game: Game, group: Sequence[MarkedGame], teaching: Teaching, codes: Codes) -> None:
        self._game, self._teaching = game, teaching
        stored, marks = [each for each, _ in group], [mark for _, mark in group]
        games = [each.game for each in stored]
        self._recorded = RecordedMoves(stored)
        # Arrays by game, so that the samples of many games are one lookup, not a loop.
        self._results = np.array([each.results for each in games])
        lengths = np.array([len(each.actions) for each in games], dtype=np.int64)
        decay = teaching.targets.value_decay
        self._root_values = later_values(self._recorded.root_values, lengths, decay)
        self._draw_weights = self._weights_of_moves(lengths)
        self._phases = codes.of_all("phases", self._recorded.phases)
        self._types = codes.of_all("move_types", self._recorded.types)
        elos = np.array([each.metadata.get("generator_elo", np.nan) for each in games], dtype=np.float32)
        seats = [seat.ai_type for each in games for seat in each.seats]
        self._players = codes.of_all("opponent_types", seats).reshape(len(games), game.players)
        self._of_game: dict[str, npt.NDArray[Any]] = {
            "total_game_moves": np.array([each.total_moves for each in stored]),
            "victory_types": codes.of_all("victory_types", [each.termination for each in games]),
            "engine_modes": codes.of_all("engine_modes", [each.engine_mode for each in games]),
            "generator_elo": elos,
            "opponent_elo": elos,
            "quality_score": np.array([mark.quality for mark in marks]),
            "sample_weights": np.array([mark.weight for mark in marks]),
            "timestamps": np.array([each.completed_s for each in games]),
            "game_hashes": np.array([game_hash(each.fingerprint) for each in stored], dtype=np.uint64),
        }

    def _weights_of_moves(self, lengths: Numbers) -> Floats:
        """How often each move is drawn; those that teach nothing do not count."""
        rows = np.flatnonzero(self._recorded.named)
        games = np.repeat(np.arange(len(lengths)), lengths)
        weights = np.ones(len(games), dtype=np.float32)
        weights[rows] = self._teaching.targets.draw_weights(self._recorded.surprise[rows], games[rows])
        return weights

    def searched(self, step: ReplayStep) -> ReplayStep | None:
        """The part of *step* that teaches something."""
        rows = np.flatnonzero(self._recorded.named[self._recorded.places(step.rows, step.move)])
        if len(rows) == len(step.rows):  # most often: without quick moves all of them teach
            return step
        flat, offsets = ragged_index(step.legal.offsets, rows)
        legal = LegalActions(offsets, step.legal.actions[flat])
        kept = ReplayStep(step.move, step.rows[rows], step.states[rows], legal, step.actions[rows])
        return kept if len(rows) else None

    def size(self, step: ReplayStep) -> int:
        """Bytes of its samples, about."""
        seen = 4 * prod(self._game.observation_shape) if self._teaching.with_features else 0
        each = step.states.nbytes + 8 * len(step.legal.actions) + (seen + MOVE_BYTES) * len(step.rows)
        return each * len(self._teaching.symmetries)

    def of(self, steps: Sequence[ReplayStep]) -> Iterator[Columns]:
        """All columns of *steps*, in each symmetry."""
        rows, moves, states, legal = joined_steps(steps)
        fixed = self._same_for_all_symmetries(rows, moves, states, legal)
        for symmetry in self._teaching.symmetries:
            turned, actions = states, legal.actions
            if symmetry:
                turned = self._game.turned(states, symmetry)
                actions = self._game.turned_actions(states, legal, symmetry)
            seen = {FEATURES: self._game.observe(turned)} if self._teaching.with_features else {}
            which = np.full(len(rows), symmetry)
            yield {**fixed, **seen, "states": turned, "policy_indices": actions, "symmetries": which}

    def _same_for_all_symmetries(
        self, rows: Numbers, moves: Numbers, states: States, legal: LegalActions
    ) -> dict[str, npt.NDArray[Any]]:
        game, places = self._game, self._recorded.places(rows, moves)
        seats = game.to_move(states)
        values = self._teaching.targets.values(self._results[rows], self._root_values[places])
        padded = np.zeros((len(rows), SEATS_MAX), dtype=np.float32)
        padded[:, : values.shape[1]] = values
        players = np.full(len(rows), game.players)
        return {
            **{name: column[rows] for name, column in self._of_game.items()},
            "globals": np.stack([seats, players], axis=1),
            "values": values[np.arange(len(rows)), seats],
            "values_mp": padded,
            "num_players": players,
            "seats": seats,
            "move_numbers": moves,
            "phases": self._phases[places],
            "move_types": self._types[places],
            "opponent_types": self._players[rows, (seats + 1) % game.players],  # who sat next
            DRAW_WEIGHTS: self._draw_weights[places],
            "policy_counts": legal.counts,
            "policy_values": self._policies(places, legal),
        }

    def _policies(self, places: Numbers, legal: LegalActions) -> Floats:
        """Over all legal actions, each summing to 1 exactly enough for training."""
        policies = self._recorded.policies
        if (alike := self._recorded.names_all(places, legal)).all():
            flat = policies.probabilities[ragged_index(policies.offsets, places)[0]]
        else:
            # A record may leave out legal actions, or list them in another order.
            flat = np.zeros(len(legal.actions), dtype=np.float32)
            named, _ = ragged_index(policies.offsets, places[alike])
            flat[ragged_index(legal.offsets, np.flatnonzero(alike))[0]] = policies.probabilities[named]
            for at in np.flatnonzero(~alike).tolist():
                span = slice(legal.offsets[at], legal.offsets[at + 1])
                flat[span] = policy_on(legal.of(at), *policies.of(int(places[at])))
        # they sum to 1 only about, by the rounding of 32-bit numbers
        totals = np.add.reduceat(flat, legal.offsets[:-1])
        summing_to_one: Floats = np.divide(flat, np.repeat(totals, legal.counts), dtype=np.float32)
        return summing_to_one


def policy_on(legal: npt.NDArray[np.int32], actions: npt.NDArray[np.int32], probabilities: Floats) -> Floats:
    """The distribution over all *legal* actions, of which it names some, in any order."""
    spread = np.zeros(len(legal), dtype=np.float32)
    order = np.argsort(legal)
    spread[order[np.searchsorted(legal[order], actions)]] = probabilities
    return spread


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
    value_decay: Annotated[
        float,
        msgspec.Meta(ge=0, le=1, description="Share of later moves' searches in the search's value."),
    ] = 0.0
    surprise: Annotated[
        float,
        msgspec.Meta(ge=0, le=1, description="Share of the surprise in how often a row is drawn."),
    ] = 0.0
    symmetries: Annotated[bool, msgspec.Meta(description="Write every sample in all symmetries.")] = False
    moves_min: Annotated[int, msgspec.Meta(ge=0, description="Refuse games with fewer moves.")] = 5
    quality_min: Annotated[float, msgspec.Meta(ge=0, le=1, description="Leave out games below.")] = 0.0
    budget_min: Annotated[
        int, msgspec.Meta(ge=0, description="Leave out games searched with fewer simulations, or with none.")
    ] = 0
    hold_out: Annotated[
        float, msgspec.Meta(ge=0, le=0.5, description="Share of games that training holds out; counted only.")
    ] = HOLD_OUT
    compress: Annotated[bool, msgspec.Meta(description="Deflate the arrays.")] = True
    features: Annotated[
        bool, msgspec.Meta(description="Also write what the network sees; `train` makes that from positions.")
    ] = True
    now_s: Annotated[float, msgspec.Meta(description="When ages end; now if none.")] | None = None


def run_export(job: Job, params: ExportParams) -> Outcome:
    with alone(params.out.with_name(f"{params.out.name}.lock")):
        return _export(job, params)


def _export(job: Job, params: ExportParams) -> Outcome:
    now_s = job.runtime.now_s() if params.now_s is None else params.now_s
    with SamplePlan() as plan:
        offered = offer_games(job, params, plan)
        game, refused = load_game(offered.config), offered.refused
        totals = choose_games(params, plan, now_s=now_s)
        if outside := totals.games_offered - totals.games:
            refused["outside_window"] = outside
        # An empty file would train to nothing and look like a success.
        if not totals.rows:
            problem = f"no game to learn from ({dict(refused)})"
            raise Corrupt(params.out, found=problem, advice="Nothing was written")
        with sealing(params.out) as part:
            _write(job, params, game, plan, part, offered=offered, now_s=now_s)
            job.stage("checking")
            # Before it gets its name: what was just written is read again as a trainer would read it.
            check = check_samples(part, game=game)
            if not check.valid:
                raise Corrupt(part, found="; ".join(check.errors), advice="Check the disk and export again")
    counts = {"rows": check.sample_count, "games": totals.games}
    artifact = describe(params.out, "samples", config=game.key, **counts)
    job.sealed(artifact)
    described = {
        "config": game.key,
        "samples": str(params.out),
        "sha256": artifact.sha256,
        **counts,
        "rows_offered": totals.rows_offered,
        "games_offered": totals.games_offered,
        "window": params.window,
        "hold_out": _held_out(params, totals),
        "newest_game_s": totals.newest_s,
        "refused": dict(refused),
        "warnings": check.warnings,
    }
    return Outcome(ExitCode.DONE, described)


@dataclass(frozen=True, slots=True)
class Offered:
    """The shards that games were offered of."""

    config: str
    digests: tuple[str, ...]
    refused: Counter[str]  # why other games were not


def offer_games(job: Job, params: ExportParams, plan: SamplePlan) -> Offered:
    """Offer the games that agree with the rules and the limits, once each."""
    reports = {_read_report(path, ReportName).sha256: path for path in params.reports}
    checks = ValidateParams(shards=params.shards, moves_min=params.moves_min)
    refused: Counter[str] = Counter()
    configs: dict[str, Path] = {}
    # Before they are read, and again afterwards: a file that changes in between is noticed.
    digests = tuple(file_sha256(path) for path in params.shards)
    job.stage("validating", total=len(params.shards))
    # Over all shards, because the same game may have been handed in twice.
    with SeenGames() as seen:
        for number, path in enumerate(params.shards):
            job.stop_point()
            report = reports.get(digests[number])
            # A report is about these bytes: whoever wrote it looked at every value.
            with open_shard(path, every_value=report is None) as shard:
                configs.setdefault(shard.metadata.get("config_key", "unknown"), path)
                # States of different games have different words: no file can hold both.
                if len(configs) > 1:
                    named = ", ".join(f"{config} ({where.name})" for config, where in configs.items())
                    raise ConfigError(f"shards of several configs cannot go into one file: {named}")
                refused.update(_note_accepted(path, report, plan, checks))
                for some in in_groups(shard.summaries(), GAMES_AT_ONCE):
                    refused.update(_offer(number, some, params, plan, seen))
            job.progress(number + 1)
    return Offered(next(iter(configs)), digests, refused)


def _note_accepted(
    path: Path, report_path: Path | None, plan: SamplePlan, checks: ValidateParams
) -> Counter[str]:
    """Tell *plan* the accepted games of one shard; returns why others were refused."""
    if report_path is not None:
        report = _read_report(report_path, ShardReport)
        plan.note_qualities((each.game_id, each.quality) for each in report.accepted)
        return Counter(report.reasons)
    with SeenGames() as seen, checked_shard(path, seen=seen, params=checks) as found:
        plan.note_qualities((each.game_id, each.quality) for each in found.accepted())
        return found.reasons


def _offer(
    shard: int, games: Sequence[GameSummary], params: ExportParams, plan: SamplePlan, seen: SeenGames
) -> Counter[str]:
    """Offer those of *games* that were accepted; returns why others of these were left out."""
    qualities = plan.qualities_of([game.game_id for game in games])
    refused: Counter[str] = Counter()
    fit = []
    for game in games:
        if (quality := qualities.get(game.game_id)) is None:
            continue
        if reason := _left_out(game, quality, params):
            refused[reason] += 1
        else:
            fit.append(game)
    twice = seen.reasons([(game.game_id, game.fingerprint, game.rows) for game in fit])
    refused.update("duplicate" for why in twice if why)
    once = [game for game, why in zip(fit, twice, strict=True) if not why]
    hashes = np.array([game_hash(game.fingerprint) for game in once], dtype=np.uint64)
    held_out = is_held_out(hashes, params.hold_out).tolist()
    plan.offer(
        PlannedGame(
            shard,
            game.game_id,
            game.rows,
            game.completed_s,
            game.engine_mode,
            qualities[game.game_id],
            held_out=held,
        )
        for game, held in zip(once, held_out, strict=True)
    )
    return refused


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


def choose_games(params: ExportParams, plan: SamplePlan, *, now_s: float) -> PlanTotals:
    """Choose the window and weigh it."""
    rows_max = params.rows_max
    if params.window == "rows":
        rows_max = min(rows_max, params.window_rows)
    elif params.window == "power":
        window = PowerWindow(params.window_a, params.window_b, params.window_c)
        # By all rows ever made, not by those offered: old shards may be deleted by now.
        rows_max = min(rows_max, window.rows(params.rows_generated or plan.totals().rows_offered))
    plan.choose(rows_max)
    plan.weigh(now_s=now_s, half_life_s=params.half_life_days * DAY_S or None)
    return plan.totals()


def _held_out(params: ExportParams, totals: PlanTotals) -> dict[str, Any]:
    return {"share": params.hold_out, "games": totals.held_games, "rows": totals.held_rows}


def _write(
    job: Job,
    params: ExportParams,
    game: Game,
    plan: SamplePlan,
    part: Path,
    *,
    offered: Offered,
    now_s: float,
) -> None:
    totals = plan.totals()
    symmetries = tuple(range(game.symmetries)) if params.symmetries else (0,)
    targets = Targets(value_mix=params.value_mix, value_decay=params.value_decay, surprise=params.surprise)
    teaching = Teaching(symmetries, targets, params.features)
    rows, codes = totals.rows * len(symmetries), Codes()
    written = index_max = 0
    job.stage("writing", total=rows)
    with SampleWriter(
        part, game, rows=rows, compress=params.compress, with_features=params.features
    ) as writer:
        marked = _all_marked(plan, params.shards, offered)
        for columns in game_samples(game, marked, teaching=teaching, codes=codes):
            job.stop_point()
            writer.add(columns)
            written += len(columns["values"])
            # the file says it, so that a reader need not go through all policies
            index_max = max(index_max, int(columns["policy_indices"].max()))
            job.progress(written)
        metadata = {
            "export_time": now_s,
            "newest_game_time": totals.newest_s,
            "game_count": totals.games,
            "sample_count": rows,
            "rows_offered": totals.rows_offered,
            "window": params.window,
            "value_mix": params.value_mix,
            "value_decay": params.value_decay,
            "surprise": params.surprise,
            "hold_out": _held_out(params, totals),
            "shards": offered.digests,
        }
        texts = {"metadata": json.dumps(metadata), "codes": json.dumps(codes.as_json())}
        writer.finish({**scalars(game, rows=rows, policy_index_max=index_max), **texts})


def _all_marked(plan: SamplePlan, shards: Sequence[Path], offered: Offered) -> Iterator[MarkedGame]:
    """The games that are in, shard after shard: those of small ones are made into samples together."""
    for number, path in enumerate(shards):
        yield from _marked_games(plan, number, path)
        if file_sha256(path) != offered.digests[number]:
            raise Corrupt(path, found="it changed while it was read", advice="Export again")


def _marked_games(plan: SamplePlan, number: int, path: Path) -> Iterator[MarkedGame]:
    # Asked once per game and kept for the moment until it is read.
    marks: dict[str, Marks] = {}

    def which_are_in(game_ids: Sequence[str]) -> Collection[str]:
        found = plan.marks_of(number, game_ids)
        marks.update(found)
        return found

    # Every value was checked when its games were offered, and it is compared with what it was then.
    with open_shard(path, every_value=False) as shard:
        for stored in shard.games(which_are_in):
            if isinstance(stored, StoredGame):
                yield stored, marks.pop(stored.game.game_id)


class ReportName(msgspec.Struct, frozen=True):
    """Of which bytes a report is."""

    sha256: str


R = TypeVar("R", bound=msgspec.Struct)


def _read_report(path: Path, wanted: type[R]) -> R:
    try:
        return convert_to(read_json(path), wanted)
    except msgspec.ValidationError as error:
        raise Corrupt(path, found=f"no report: {error}", advice="Validate the shard again") from None


EXPORT = JobSpec("export", "Turn validated games into training samples.", ExportParams, run_export)


def main(argv: Sequence[str]) -> int:
    return run_job(EXPORT, argv)
