"""The `selfplay` job: games by search, written as sealed shards.

Games are numbered and every number has its own seed, so what is played follows from the parameters alone:
a run that was stopped, or killed, and started again makes the same games as one that was not. Finished
games are on disk at once; unfinished ones are noted now and then and when asked to stop.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import structlog

from ringrift.errors import ConfigError, Corrupt, IllegalAction
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.exit_codes import ExitCode
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.params import Params, params_as_json
from ringrift.jobs.sealing import alone, read_json, seal_json
from ringrift.jobs.shards.records import RESIGNATION, PlayedGame, SeatRecord, SoftPolicies, termination_of
from ringrift.jobs.shards.writer import ShardWriter
from ringrift.machine_kind import machine_kind
from ringrift.players.seeds import derived
from ringrift.search.contract import Evaluator, SearchConfig
from ringrift.search.evaluators import UniformEvaluator
from ringrift.search.records import FinishedGame, GameInProgress
from ringrift.search.schedules import PlayoutCaps, Resignation, TemperatureSchedule
from ringrift.search.selfplay import Selfplay, SelfplayConfig

TEMPERATURE_FLOOR = 0.1
SIDE_SUFFIX = ".unfinished.json"
GENERATORS = "ringrift.jobs.generators"
# What has no influence on the games, or only on how many there are.
NOT_IDENTITY = {
    *("out", "games", "games_per_shard", "slots", "model", "threads", "device"),
    *("checkpoint_s", "heartbeat_s", "log_level"),
}

log = structlog.get_logger()


class SelfplayParams(Params, frozen=True, kw_only=True):
    """Parameters of `selfplay`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    games: Annotated[int, msgspec.Meta(ge=1, le=10_000_000, description="Games in all, with earlier runs.")]
    out: Annotated[Path, msgspec.Meta(description="Folder of the shards.")]
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of the run.")] = 0
    model: Annotated[Path | None, msgspec.Meta(description="Weights; if none, all moves seem alike.")] = None
    simulations: Annotated[int, msgspec.Meta(ge=1, description="Search budget of a move.")] = 64
    root: Annotated[Literal["gumbel", "puct"], msgspec.Meta(description="Choice at the root.")] = "gumbel"
    considered: Annotated[int, msgspec.Meta(ge=1, description="Root actions that Gumbel tries.")] = 16
    c_visit: Annotated[float, msgspec.Meta(ge=0, description="Gumbel: visits before values count.")] = 50.0
    c_scale: Annotated[float, msgspec.Meta(ge=0, description="Gumbel: weight of values.")] = 0.1
    c_puct: Annotated[float, msgspec.Meta(ge=0, description="Exploration below the root, or of PUCT.")] = 1.5
    tree_reuse: Annotated[bool, msgspec.Meta(description="Keep the tree between moves.")] = False
    temperature: Annotated[float, msgspec.Meta(ge=0, description="Temperature of the first moves.")] = 1.0
    temperature_plies: Annotated[int, msgspec.Meta(ge=0, description="Moves before it falls.")] = 30
    quick_simulations: Annotated[
        int, msgspec.Meta(ge=0, description="Budget of moves that teach no policy; 0: all moves are full.")
    ] = 0
    full_share: Annotated[float, msgspec.Meta(gt=0, le=1, description="Share of the full moves.")] = 0.25
    resign_below: Annotated[
        float, msgspec.Meta(ge=-1, le=0, description="Give up below this value; 0: never.")
    ] = 0.0
    slots: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Games at a time.")] = 64
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Positions per network call.")] = 64
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads of the network.")] = 1
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where to compute.")] = "auto"
    games_per_shard: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="A shard is sealed at so many.")
    ] = 500
    checkpoint_s: Annotated[float, msgspec.Meta(ge=0.02, description="Note unfinished games so often.")] = (
        60.0
    )


def selfplay_config(params: SelfplayParams) -> SelfplayConfig:
    caps = None
    if params.quick_simulations:
        caps = PlayoutCaps(quick_simulations=params.quick_simulations, full_share=params.full_share)
    start = params.temperature
    return SelfplayConfig(
        search=SearchConfig(
            simulations=params.simulations,
            root=params.root,
            considered=params.considered,
            c_visit=params.c_visit,
            c_scale=params.c_scale,
            c_puct=params.c_puct,
            tree_reuse=params.tree_reuse,
        ),
        slots=params.slots,
        temperature=TemperatureSchedule(
            start=start, plies=params.temperature_plies, floor=min(start, TEMPERATURE_FLOOR)
        ),
        playout_caps=caps,
        resignation=Resignation(below=params.resign_below) if params.resign_below else None,
    )


def run_selfplay(job: Job, params: SelfplayParams) -> Outcome:
    game = load_game(params.config)
    config = selfplay_config(params)
    evaluator, digest = make_evaluator(params, game)
    run_id = run_identity(params, digest)
    name = f"{re.sub(r'[^a-z0-9_]+', '-', game.key)}-{run_id}"
    with alone(params.out / f"{name}.lock"):
        return _Run(job, params, game, name=name, run_id=run_id, digest=digest).play(evaluator, config)


def make_evaluator(params: SelfplayParams, game: Game) -> tuple[Evaluator, str | None]:
    """Who judges positions, and the digest of its weights."""
    if params.model is None:
        return UniformEvaluator(game), None
    make: Callable[..., tuple[Evaluator, str]] = importlib.import_module(GENERATORS).model_generator
    return make(params.model, game, threads=params.threads, batch=params.batch, device=params.device)


def run_identity(params: SelfplayParams, digest: str | None) -> str:
    """The same for two runs that play the same games."""
    fields = {key: value for key, value in params_as_json(params).items() if key not in NOT_IDENTITY}
    text = msgspec.json.encode({**fields, "generator": digest}, order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def machine_of(evaluator: Evaluator, params: SelfplayParams) -> str:
    """What the bits of a search depend on: the kind of machine, and how the network is computed."""
    engine = getattr(getattr(evaluator, "engine", None), "name", "none")
    return f"{machine_kind()}; network {engine} x{params.threads}"


class _Run:
    """One run: which games are done, which are under way, which come next."""

    def __init__(
        self, job: Job, params: SelfplayParams, game: Game, *, name: str, run_id: str, digest: str | None
    ) -> None:
        self._job, self._params, self._game = job, params, game
        self._run_id, self._digest = run_id, digest
        self._side = params.out / f"{name}{SIDE_SUFFIX}"
        facts = {
            "config_key": game.key,
            "run_id": run_id,
            "generator_sha256": digest or "",
            "params": msgspec.json.encode(params_as_json(params)).decode(),
        }
        self._writer = ShardWriter(
            params.out, name, game, games_per_shard=params.games_per_shard, facts=facts
        )
        for artifact in self._writer.sealed_before():
            job.sealed(artifact)
        numbers = np.arange(params.games, dtype=np.int64)
        self._index_of = dict(zip(derived(params.seed, numbers).tolist(), numbers.tolist(), strict=True))
        self._started_s: dict[int, float] = {}
        self._done = self._cut_off = 0

    def play(self, evaluator: Evaluator, config: SelfplayConfig) -> Outcome:
        self._machine = machine_of(evaluator, self._params)
        done = self._writer.done_indexes()
        self._done = len(done & set(self._index_of.values()))
        resumed = self._unfinished(done)
        self._resumed_moves = sum(len(each.moves) for each in resumed)
        begun = {each.seed for each in resumed}
        fresh = (s for s, at in self._index_of.items() if at not in done and s not in begun)
        selfplay = Selfplay(
            self._game, evaluator, config, self._beginning(fresh), resume=resumed, stop=self._pause
        )
        self._job.stage("playing", total=self._params.games, done=self._done)
        self._noted_s = self._job.runtime.monotonic_s()
        while self._go_on(selfplay):
            self._note(selfplay)
        return self._end(selfplay)

    def _go_on(self, selfplay: Selfplay) -> bool:
        """Play until something is to be noted; false when all is played or the job should stop."""
        for finished in selfplay:
            self._keep(finished)
            self._job.progress(self._done, moves=selfplay.moves, simulations=selfplay.simulations)
        return bool(selfplay.in_progress()) and not self._job.stop.requested

    def _pause(self) -> bool:
        now_s = self._job.runtime.monotonic_s()
        return self._job.stop.requested or now_s - self._noted_s >= self._params.checkpoint_s

    def _note(self, selfplay: Selfplay) -> None:
        games = [
            {"started_s": self._started_s[each.seed], **each.to_json()} for each in selfplay.in_progress()
        ]
        seal_json(self._side, {"run_id": self._run_id, "games": games})
        self._noted_s = self._job.runtime.monotonic_s()

    def _end(self, selfplay: Selfplay) -> Outcome:
        stopped = bool(selfplay.in_progress())
        if stopped:
            self._note(selfplay)
        if (artifact := self._writer.seal()) is not None:
            self._job.sealed(artifact)
        self._writer.close()
        if not stopped:
            self._side.unlink(missing_ok=True)
        self._job.progress(self._done, moves=selfplay.moves, simulations=selfplay.simulations)
        told = {
            "config": self._game.key,
            "run_id": self._run_id,
            "seed": self._params.seed,
            "games": self._done,
            **self._sealed_totals(),
            "games_wanted": self._params.games,
            "unfinished": len(selfplay.in_progress()),
            "cut_off": self._cut_off,
            "resumed_moves": self._resumed_moves,
            "moves": selfplay.moves,
            "simulations": selfplay.simulations,
            "generator_sha256": self._digest,
            "machine": self._machine,
        }
        return Outcome(ExitCode.STOPPED if stopped else ExitCode.DONE, told)

    def _sealed_totals(self) -> dict[str, int]:
        """Decisions and training rows of all shards of the run, those of earlier processes too."""
        counts = [each.counts for each in self._job.artifacts if each.kind == "shard"]
        return {
            "decisions": sum(each["moves"] for each in counts),
            "rows": sum(each["rows"] for each in counts),
        }

    def _unfinished(self, done: set[int]) -> list[GameInProgress]:
        """Games that an earlier run left half-played."""
        if not self._side.exists():
            return []
        noted = read_json(self._side)
        resumed = []
        try:
            for fields in noted["games"]:
                if self._index_of.get(fields["seed"], -1) in {-1, *done}:
                    continue
                each = GameInProgress.from_json(self._game, fields)
                self._started_s[each.seed] = float(fields["started_s"])
                resumed.append(each)
        except (KeyError, TypeError, ValueError, ConfigError, IllegalAction) as fault:
            raise Corrupt(
                self._side,
                found=f"no games in progress ({fault!r})",
                advice="Remove it to play these games anew",
            ) from fault
        return resumed

    def _beginning(self, seeds: Iterator[int]) -> Iterator[int]:
        for seed in seeds:
            self._started_s[seed] = self._job.runtime.now_s()
            yield seed

    def _keep(self, finished: FinishedGame) -> None:
        self._done += 1
        if finished.cut_off:
            self._cut_off += 1
            log.warning("selfplay.cut_off", seed=finished.seed, moves=len(finished.actions))
            return
        artifact = self._writer.add(self._played(finished))
        if artifact is not None:
            self._job.sealed(artifact)

    def _played(self, finished: FinishedGame) -> PlayedGame:
        index, mode = self._index_of[finished.seed], self._params.root
        resigned = finished.resigned_by is not None
        return PlayedGame(
            game_id=f"{self._game.key}-{self._run_id}-{index:07d}",
            config_key=self._game.key,
            seed=finished.seed,
            run_id=self._run_id,
            run_index=index,
            source="selfplay",
            engine_mode=mode,
            started_s=self._started_s.pop(finished.seed),
            completed_s=self._job.runtime.now_s(),
            termination=RESIGNATION if resigned else termination_of(self._game, finished.final_state),
            seats=tuple(
                SeatRecord(mode, "selfplay", float(result), int(rank), self._digest, self._params.simulations)
                for result, rank in zip(finished.results, finished.rankings, strict=True)
            ),
            actions=finished.actions,
            policies=full_policies(finished),
            root_values=finished.root_values,
            generator_sha256=self._digest,
            search_budget=self._params.simulations,
        )


def full_policies(finished: FinishedGame) -> SoftPolicies:
    """The policies of the moves that had a full search."""
    counts = np.where(finished.full, finished.legal.counts, 0)
    kept = np.repeat(finished.full, finished.legal.counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return SoftPolicies(offsets, finished.legal.actions[kept], finished.policy[kept])


SELFPLAY = JobSpec("selfplay", "Play games by search and write sealed shards.", SelfplayParams, run_selfplay)


def main(argv: Sequence[str]) -> int:
    return run_job(SELFPLAY, argv)
