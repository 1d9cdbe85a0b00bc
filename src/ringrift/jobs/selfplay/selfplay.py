"""The `selfplay` job: games by search, written as sealed shards.

Games are numbered and every number has its own seed, so what is played follows from the parameters alone:
a run that was stopped, or killed, and started again makes the same games as one that was not. Finished
games are on disk at once; unfinished ones are noted now and then and when asked to stop.

With `hand_over` a stop is a good end: the unfinished games are one more artifact, and any later run that is
given it (`resume`) plays them on first, under their names, with weights of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import structlog

from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, Corrupt, ForeignFile
from ringrift.foreign_files.paths import read_regular
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.files import SealedFile, alone, describe, sealing
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.shards.records import RESIGNATION, PlayedGame, SeatRecord, SoftPolicies, termination_of
from ringrift.jobs.shards.storage import ShardWriter
from ringrift.machine import machine_kind
from ringrift.players.contract import derived
from ringrift.search.contract import Evaluator, Interrupted, SearchConfig, UniformEvaluator
from ringrift.search.records import FinishedGame, GameInProgress, NotedMove, games_in_progress
from ringrift.search.selfplay import (
    Openings,
    PlayoutCaps,
    Resignation,
    Selfplay,
    SelfplayConfig,
    TemperatureSchedule,
)

# --- files of unfinished games ------------------------------------------------------------------------
#
# Files of unfinished games: what a self-play job hands over to the next one, on any machine.
#
# Such a file comes from another machine and another job, so nothing in it is believed: every field has a type
# and a bound, and every move is made again by the rules.


KIND = "unfinished"
SUFFIX = ".unfinished.json"
FORMAT: Final = "ringrift-unfinished-games"
BYTES_MAX = 512 << 20
GAMES_MAX = 65_536
MOVES_MAX = 50_000
TURNS_MAX = 1_000
INDEX_MAX = 10_000_000
_ADVICE = "Take the file out of the inputs; its games are lost, and others are played in their place"
_RUN_ID = re.compile(r"[0-9a-f]{16}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class PlayedTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which run played a game from a move on, and with which weights."""

    run_id: str
    model: str | None  # digest of the weights
    from_move: Annotated[int, msgspec.Meta(ge=0, le=MOVES_MAX)]


class UnfinishedGame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A game in progress, by the name that it has for good."""

    game_id: str
    run_id: str  # of the run that began it
    run_index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    started_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    turns: Annotated[tuple[PlayedTurn, ...], msgspec.Meta(min_length=1, max_length=TURNS_MAX)]
    moves: Annotated[list[NotedMove], msgspec.Meta(max_length=MOVES_MAX)]


class UnfinishedGames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal["ringrift-unfinished-games"]
    version: Literal[1]
    config: str
    run_id: str  # of the run that wrote it
    games: Annotated[tuple[UnfinishedGame, ...], msgspec.Meta(max_length=GAMES_MAX)]


@dataclass(frozen=True, slots=True)
class ResumedGame:
    """A game of such a file, played again up to where it stands."""

    about: UnfinishedGame
    progress: GameInProgress


def seal_unfinished(path: Path, config: str, run_id: str, games: Iterable[UnfinishedGame]) -> None:
    """Write the file at once, replacing what was there."""
    whole = UnfinishedGames(format=FORMAT, version=1, config=config, run_id=run_id, games=tuple(games))
    with sealing(path) as part:
        part.write_bytes(msgspec.json.encode(whole) + b"\n")


def describe_unfinished(path: Path, games: Sequence[GameInProgress]) -> SealedFile:
    return describe(path, KIND, games=len(games), moves=sum(len(each.moves) for each in games))


def read_unfinished(path: Path, game: Game) -> tuple[list[ResumedGame], str]:
    """The games of a file, and its digest.

    Raises `ConfigError` if there is no such file, `ForeignFile` if it is something else or of another game,
    and `Corrupt` if it does not agree with the rules or with itself.
    """
    try:
        content = read_regular(path, bytes_max=BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        found = decode_as(content, UnfinishedGames)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(path, found=f"no file of unfinished games: {error}", advice=_ADVICE) from None
    if found.config != game.key:
        reason = f"its games are of {found.config[:80]!r}, not of {game.key}"
        raise ForeignFile(path, found=reason, advice="Name files of unfinished games of this config")
    if problem := _problem(found):
        raise Corrupt(path, found=problem, advice=_ADVICE)
    try:
        played = games_in_progress(game, [(each.seed, each.moves) for each in found.games])
    except ConfigError as error:
        raise Corrupt(path, found=str(error), advice=_ADVICE) from None
    games = [ResumedGame(about, progress) for about, progress in zip(found.games, played, strict=True)]
    return games, hashlib.sha256(content).hexdigest()


def read_all_unfinished(paths: Sequence[Path], game: Game) -> tuple[list[ResumedGame], list[str]]:
    """The games and the digests of all files; raises as `read_unfinished`, also if a game is there twice."""
    read = [(path, *read_unfinished(path, game)) for path in paths]
    found = [(path, each) for path, games, _ in read for each in games]
    for what in ("game_id", "seed"):
        seen: set[object] = set()
        for path, each in found:
            name = getattr(each.about, what)
            if name in seen:
                raise Corrupt(path, found=f"the {what} {name} is there twice", advice=_ADVICE)
            seen.add(name)
    return [each for _, each in found], [digest for _, _, digest in read]


def turns_with(turns: Sequence[PlayedTurn], own: PlayedTurn) -> tuple[PlayedTurn, ...]:
    """*turns* and one more; of very many the oldest but the first are left out."""
    return (*turns, own) if len(turns) < TURNS_MAX else (turns[0], *turns[2 - TURNS_MAX :], own)


def _problem(found: UnfinishedGames) -> str:
    """What does not agree with itself; empty if all does."""
    if not _RUN_ID.fullmatch(found.run_id):
        return "its run is no run"
    for number, each in enumerate(found.games, start=1):
        if not _RUN_ID.fullmatch(each.run_id) or each.game_id != game_id_of(
            found.config, each.run_id, each.run_index
        ):
            return f"the id of game {number} is not that of its run and number"
        starts = [turn.from_move for turn in each.turns]
        if starts[0] != 0 or starts != sorted(starts) or starts[-1] > len(each.moves):
            return f"the turns of {each.game_id} do not follow each other"
        for turn in each.turns:
            if not _RUN_ID.fullmatch(turn.run_id) or not (
                turn.model is None or _SHA256.fullmatch(turn.model)
            ):
                return f"a turn of {each.game_id} names no run or no weights"
    return ""


def game_id_of(config: str, run_id: str, index: int) -> str:
    return f"{config}-{run_id}-{index:07d}"


# --- the job ------------------------------------------------------------------------------------------


TEMPERATURE_FLOOR = 0.1  # never 0 in the loop: games of one network would end up alike
GENERATORS = "ringrift.network.evaluator"  # by name: games without a network must not load torch
_HEAD_BYTES = 64
# What has no influence on the games, or only on how many there are.
NOT_IDENTITY = {
    *("out", "games", "games_per_shard", "slots", "model", "threads", "device"),
    *("checkpoint_s", "heartbeat_s", "log_level", "seconds", "hand_over", "resume"),
}
# Games of versions without these have the identity that they would have with the defaults.
ADDED_LATER = {"rescale": True, "prove": False, "opening_plies": 0, "opening_share": 0.5}

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
    rescale: Annotated[bool, msgspec.Meta(description="Gumbel: stretch the values of a node to 0..1.")] = True
    prove: Annotated[bool, msgspec.Meta(description="Gumbel: take finished games as proofs.")] = False
    c_puct: Annotated[float, msgspec.Meta(ge=0, description="Exploration below the root, or of PUCT.")] = 1.5
    tree_reuse: Annotated[bool, msgspec.Meta(description="Keep the tree between moves.")] = False
    temperature: Annotated[float, msgspec.Meta(ge=0, description="Temperature of the first moves.")] = 1.0
    temperature_plies: Annotated[int, msgspec.Meta(ge=0, description="Moves before it falls.")] = 30
    quick_simulations: Annotated[
        int, msgspec.Meta(ge=0, description="Budget of moves that teach no policy; 0: all moves are full.")
    ] = 0
    full_share: Annotated[float, msgspec.Meta(gt=0, le=1, description="Share of the full moves.")] = 0.25
    opening_plies: Annotated[
        int, msgspec.Meta(ge=0, description="Most random moves at the beginning of a game; 0: none.")
    ] = 0
    opening_share: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="Share of the games that begin so.")
    ] = 0.5
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
    seconds: Annotated[
        float, msgspec.Meta(ge=0, description="Begin no move after so long; 0: play all games.")
    ] = 0.0
    hand_over: Annotated[
        bool, msgspec.Meta(description="Asked to stop, or when time is up: end well, with unfinished games.")
    ] = False
    resume: Annotated[
        tuple[Path, ...], msgspec.Meta(description="Unfinished games to go on with, besides new ones.")
    ] = ()


def selfplay_config(params: SelfplayParams) -> SelfplayConfig:
    caps = None
    if params.quick_simulations:
        caps = PlayoutCaps(quick_simulations=params.quick_simulations, full_share=params.full_share)
    openings = None
    if params.opening_plies:
        openings = Openings(plies_max=params.opening_plies, share=params.opening_share)
    start = params.temperature
    return SelfplayConfig(
        search=SearchConfig(
            simulations=params.simulations,
            root=params.root,
            considered=params.considered,
            c_visit=params.c_visit,
            c_scale=params.c_scale,
            rescale=params.rescale,
            prove=params.prove,
            c_puct=params.c_puct,
            tree_reuse=params.tree_reuse,
        ),
        slots=params.slots,
        temperature=TemperatureSchedule(
            start=start, plies=params.temperature_plies, floor=min(start, TEMPERATURE_FLOOR)
        ),
        playout_caps=caps,
        openings=openings,
        resignation=Resignation(below=params.resign_below) if params.resign_below else None,
    )


def run_selfplay(job: Job, params: SelfplayParams) -> Outcome:
    game = load_game(params.config)
    config = selfplay_config(params)
    resumed, digests = read_all_unfinished(params.resume, game)
    clock = _Clock(job, params)
    evaluator, digest = make_evaluator(params, game, before_batch=clock.interrupt)
    run_id = run_identity(params, digest, resumed=digests)
    # Keys of foreign games hold brackets and colons, which file systems and shells take badly.
    name = f"{re.sub(r'[^a-z0-9_]+', '-', game.key)}-{run_id}"
    with alone(params.out / f"{name}.lock"):
        run = _Run(job, params, game, clock, name=name, run_id=run_id, digest=digest)
        return run.play(evaluator, config, resumed)


def make_evaluator(
    params: SelfplayParams, game: Game, *, before_batch: Callable[[], None] | None = None
) -> tuple[Evaluator, str | None]:
    """Who judges positions, and the digest of its weights."""
    if params.model is None:
        return UniformEvaluator(game), None
    make: Callable[..., tuple[Evaluator, str]] = importlib.import_module(GENERATORS).model_generator
    computing = {"threads": params.threads, "batch": params.batch, "device": params.device}
    return make(params.model, game, **computing, before_batch=before_batch)


def run_identity(params: SelfplayParams, digest: str | None, *, resumed: Sequence[str] = ()) -> str:
    """The same for two runs that play the same games; *resumed* are the digests of the files of `resume`."""
    fields = {
        key: value
        for key, value in params_as_json(params).items()
        if key not in NOT_IDENTITY and (key not in ADDED_LATER or value != ADDED_LATER[key])
    }
    if resumed:
        fields["resume"] = list(resumed)
    text = msgspec.json.encode({**fields, "generator": digest}, order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]  # part of every file name and game id


def machine_of(evaluator: Evaluator, params: SelfplayParams) -> str:
    """What the bits of a search depend on: the kind of machine, and how the network is computed."""
    engine = getattr(getattr(evaluator, "engine", None), "name", "none")
    return f"{machine_kind()}; network {engine} x{params.threads}"


class _Clock:
    """Says when the run has to leave its games."""

    def __init__(self, job: Job, params: SelfplayParams) -> None:
        self._job, self._params = job, params
        self._began_s = self._noted_s = job.runtime.monotonic_s()

    def begin(self) -> None:
        self._began_s = self._noted_s = self._job.runtime.monotonic_s()

    def noted(self) -> None:
        self._noted_s = self._job.runtime.monotonic_s()

    def is_up(self) -> bool:
        """Whether no further move should begin. The moves under way are made: they are paid for."""
        limit_s = self._params.seconds
        return bool(limit_s) and self._job.runtime.monotonic_s() - self._began_s >= limit_s

    def pause(self) -> bool:
        """Whether to look at more than the games: to stop, or to note them."""
        now_s = self._job.runtime.monotonic_s()
        return self._job.stop.requested or now_s - self._noted_s >= self._params.checkpoint_s

    def interrupt(self) -> None:
        """Leave a search in the middle: whoever waits for a hand-over waits for less than a second."""
        # Without a hand-over the search is finished: its moves are kept, and nobody waits.
        if self._params.hand_over and self._job.stop.requested:
            raise Interrupted


@dataclass(frozen=True, slots=True)
class _Begun:
    """A game of this run, or one that it goes on with."""

    game_id: str
    run_id: str  # of the run that began it
    run_index: int
    started_s: float
    turns: tuple[PlayedTurn, ...]  # the last is this run's


class _Run:
    """One run: which games are done, which are under way, which come next."""

    def __init__(
        self,
        job: Job,
        params: SelfplayParams,
        game: Game,
        clock: _Clock,
        *,
        name: str,
        run_id: str,
        digest: str | None,
    ) -> None:
        self._job, self._params, self._game, self._clock = job, params, game, clock
        self._run_id, self._digest = run_id, digest
        self._side = params.out / f"{name}{SUFFIX}"
        facts = {
            "config_key": game.key,
            "run_id": run_id,
            "generator_sha256": digest or "",
            "params": msgspec.json.encode(params_as_json(params)).decode(),
        }
        self._writer = ShardWriter(
            params.out, name, game, games_per_shard=params.games_per_shard, facts=facts
        )
        # Shards of an earlier process of this run belong to its result, too.
        for artifact in self._writer.sealed_before():
            job.sealed(artifact)
        self._begun: dict[int, _Begun] = {}  # by seed, while they are not finished
        self._done = self._cut_off = 0

    def play(self, evaluator: Evaluator, config: SelfplayConfig, handed: Sequence[ResumedGame]) -> Outcome:
        self._machine = machine_of(evaluator, self._params)
        done = self._writer.done_ids()
        self._done = len(done)
        noted = self._noted_before(done)
        # A game that was handed over and begun here before is further along in our own notes.
        known = done | {each.about.game_id for each in noted}
        taken = [each for each in handed if each.about.game_id not in known]
        for each in noted:
            self._take(each.about, turns=each.about.turns)
        for each in taken:
            own = PlayedTurn(run_id=self._run_id, model=self._digest, from_move=len(each.about.moves))
            self._take(each.about, turns=turns_with(each.about.turns, own))
        resumed = [each.progress for each in (*noted, *taken)]
        self._resumed_moves = sum(len(each.moves) for each in resumed)
        self._handed = handed
        selfplay = Selfplay(
            self._game,
            evaluator,
            config,
            self._fresh(done, {each.about.seed for each in (*noted, *handed)}),
            resume=resumed,
            stop=self._clock.pause,
            enough=self._clock.is_up,
        )
        self._job.stage("playing", total=self._params.games + len(handed), done=self._done)
        self._clock.begin()  # loading and compiling do not count against the time
        while self._go_on(selfplay):
            self._note(selfplay)
        return self._end(selfplay)

    def _go_on(self, selfplay: Selfplay) -> bool:
        """Play until something is to be noted; false when all is played or the job should stop."""
        for finished in selfplay:
            self._keep(finished)
            self._job.progress(self._done, moves=selfplay.moves, simulations=selfplay.simulations)
        if self._clock.is_up():
            # One way to end for both: asked by a signal, or by the clock.
            self._job.stop.request("its time is up")
        return bool(selfplay.in_progress()) and not self._job.stop.requested

    def _note(self, selfplay: Selfplay) -> None:
        games = [self._unfinished(each) for each in self._to_keep(selfplay)]
        seal_unfinished(self._side, self._game.key, self._run_id, games)
        self._clock.noted()

    def _to_keep(self, selfplay: Selfplay) -> list[GameInProgress]:
        """Games in progress; new ones without a move only if there are no others: they are not begun yet."""
        games = selfplay.in_progress()
        return [each for each in games if each.moves or len(self._begun[each.seed].turns) > 1] or games

    def _end(self, selfplay: Selfplay) -> Outcome:
        left = self._to_keep(selfplay)
        if left:
            self._note(selfplay)
        if (artifact := self._writer.seal()) is not None:
            self._job.sealed(artifact)
        # After the notes are written: a kill in between may repeat games, and must not lose them.
        self._writer.close()
        if not left:
            self._side.unlink(missing_ok=True)
        elif self._params.hand_over:
            self._job.sealed(describe_unfinished(self._side, left))
        self._job.progress(self._done, moves=selfplay.moves, simulations=selfplay.simulations)
        result = {
            "config": self._game.key,
            "run_id": self._run_id,
            "seed": self._params.seed,
            "games": self._done,
            **self._sealed_totals(),
            "games_wanted": self._params.games,
            "unfinished": len(left),
            "cut_off": self._cut_off,
            "resumed_games": len(self._handed),
            "resumed_turns": max((len(each.about.turns) for each in self._handed), default=0),
            "resumed_moves": self._resumed_moves,
            "moves": selfplay.moves,
            "simulations": selfplay.simulations,
            "generator_sha256": self._digest,
            "machine": self._machine,
        }
        stopped = bool(left) and not self._params.hand_over
        return Outcome(ExitCode.STOPPED if stopped else ExitCode.DONE, result)

    def _sealed_totals(self) -> dict[str, int]:
        """Decisions and training rows of all shards of the run, those of earlier processes too."""
        counts = [each.counts for each in self._job.artifacts if each.kind == "shard"]
        return {
            "decisions": sum(each["moves"] for each in counts),
            "rows": sum(each["rows"] for each in counts),
        }

    # --- games ------------------------------------------------------------------------------------------

    def _noted_before(self, done: set[str]) -> list[ResumedGame]:
        """Games that an earlier process of this run left half-played."""
        if not self._side.exists() or _is_of_older_version(self._side):
            return []
        try:
            games, _ = read_unfinished(self._side, self._game)
        except Corrupt as fault:
            raise Corrupt(
                self._side, found=fault.found, advice="Remove it to play these games anew"
            ) from fault
        return [each for each in games if each.about.game_id not in done]

    def _take(self, about: UnfinishedGame, *, turns: tuple[PlayedTurn, ...]) -> None:
        self._begun[about.seed] = _Begun(about.game_id, about.run_id, about.run_index, about.started_s, turns)

    def _fresh(self, done: set[str], known: set[int]) -> Iterator[int]:
        """Seeds of the games of this run that are not begun yet."""
        for index in range(self._params.games):
            # From the number of the game alone, so that order and slots change nothing.
            seed = int(derived(self._params.seed, index)[0])
            game_id = game_id_of(self._game.key, self._run_id, index)
            if seed in known or game_id in done:
                continue
            own = PlayedTurn(run_id=self._run_id, model=self._digest, from_move=0)
            now_s = self._job.runtime.now_s()
            self._begun[seed] = _Begun(game_id, self._run_id, index, now_s, (own,))
            yield seed

    def _unfinished(self, progress: GameInProgress) -> UnfinishedGame:
        begun = self._begun[progress.seed]
        return UnfinishedGame(
            game_id=begun.game_id,
            run_id=begun.run_id,
            run_index=begun.run_index,
            seed=progress.seed,
            started_s=begun.started_s,
            turns=begun.turns,
            moves=progress.noted_moves(),
        )

    def _keep(self, finished: FinishedGame) -> None:
        self._done += 1
        begun = self._begun.pop(finished.seed)
        # It has no result to learn from, but counts as played: another try would be cut off again.
        if finished.cut_off:
            self._cut_off += 1
            log.warning("selfplay.cut_off", seed=finished.seed, moves=len(finished.actions))
            return
        artifact = self._writer.add(self._played(finished, begun))
        if artifact is not None:
            self._job.sealed(artifact)

    def _played(self, finished: FinishedGame, begun: _Begun) -> PlayedGame:
        mode = self._params.root
        resigned = finished.resigned_by is not None
        turns = {"turns": msgspec.to_builtins(begun.turns)} if len(begun.turns) > 1 else {}
        return PlayedGame(
            game_id=begun.game_id,
            config_key=self._game.key,
            seed=finished.seed,
            run_id=begun.run_id,
            run_index=begun.run_index,
            source="selfplay",
            engine_mode=mode,
            started_s=begun.started_s,
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
            metadata=turns,
            surprise=finished.surprise,
        )


def _is_of_older_version(side: Path) -> bool:
    """Whether games were noted without their names. They follow from their seeds and are played anew."""
    with side.open("rb") as file:
        return b'"format"' not in file.read(_HEAD_BYTES)


def full_policies(finished: FinishedGame) -> SoftPolicies:
    """The policies of the moves that had a full search."""
    counts = np.where(finished.full, finished.legal.counts, 0)
    kept = np.repeat(finished.full, finished.legal.counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return SoftPolicies(offsets, finished.legal.actions[kept], finished.policy[kept])


SELFPLAY = JobSpec("selfplay", "Play games by search and write sealed shards.", SelfplayParams, run_selfplay)


def main(argv: Sequence[str]) -> int:
    return run_job(SELFPLAY, argv)
