"""What the doctor looks at: checks of the run and its data, and checks of how a config learns."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.sqlite.files import SqliteConfig, check_whole
from ringrift.errors import Corrupt
from ringrift.learning.doctor.findings import ExaminationContext, Finding, Level, Observation
from ringrift.learning.facts.records import Shard, ShardState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.store_check import check_store
from ringrift.learning.plan.evaluation import open_candidates
from ringrift.learning.plan.orders import EXTRA_STAGES, STAGES
from ringrift.learning.plan.stages import breaker_gate, not_done, slot_of
from ringrift.learning.plan.trust import suspect_since, why_distrusted
from ringrift.settings import Settings
from ringrift.work.job.folder import role_of
from ringrift.work.shares import board_and_players

# Checks of the run itself and of what it keeps.


# Workers, disk, clock, breakers, and stages that wait too long for their turn.


GIB = 2**30
DISK_PROBLEM_BYTES, DISK_WARNING_BYTES = 1 * GIB, 5 * GIB
DISK_PROBLEM_SHARE, DISK_WARNING_SHARE = 0.02, 0.05
CLOCK_JUMP_S = 30.0
WORKER_IDLE_S = 1800.0
WAITS_WARNING_S, WAITS_PROBLEM_S = 1200.0, 3600.0
JOBS_LONG = 10.0  # a stage is late after so many times the length of one self-play job


def breakers(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    for stage in (*STAGES, *EXTRA_STAGES):
        failures = state.failures.get(stage)
        if failures is None or not failures.in_a_row:
            continue
        gate = breaker_gate(stage, failures, context.rules, now_s=context.now_s)
        grave = failures.in_a_row >= context.rules.breaker_failures
        rests = "" if gate.until_s is None else f"; it rests for {gate.until_s - context.now_s:.0f} s more"
        times = "once" if failures.in_a_row == 1 else f"{failures.in_a_row} times in a row"
        yield Observation(
            level=Level.PROBLEM if grave else Level.NOTICE,
            text=f"{stage} of {state.config} failed {times}: {failures.error}{rests}",
            advice="`ringrift queue dead` shows the items; it tries again by itself.",
            evidence={"stage": stage, "in_a_row": failures.in_a_row},
        )


def files(context: ExaminationContext) -> Iterator[Observation]:
    """Files that work needs and that were found damaged."""
    for found in context.damaged:
        yield Observation(
            level=Level.PROBLEM,
            text=f"{role_of(found.name)} ({found.digest}) on {found.node}, for {found.item_id}, is damaged",
            advice="It is set aside. Another copy is brought if there is one; else `ringrift data restore`.",
            evidence={"digest": found.digest, "node": found.node},
        )


def run_paused(context: ExaminationContext) -> Iterator[Observation]:
    """What somebody stopped on purpose is no fault, but whoever asks why nothing happens has to see it."""
    if context.run_paused is not None:
        yield Observation(
            level=Level.NOTICE,
            text=f"the run is paused: {context.run_paused}",
            advice="`ringrift resume` lets it go on.",
        )


def stopped_daemons(context: ExaminationContext) -> Iterator[Observation]:
    """What nobody does because somebody stopped its daemon; of most of them no plan says so."""
    texts = not_done(context.stopped)
    for name, asked in context.stopped.items():
        yield Observation(
            level=Level.NOTICE,
            text=texts[name],
            advice=f"`ringrift daemons start {name}` ends this.",
            evidence={"daemon": name, "by": asked.by, "since_s": asked.at_s},
        )


def paused(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    if context.run_paused is None and (why := context.paused.get(state.config)) is not None:
        yield Observation(
            level=Level.NOTICE,
            text=f"{state.config} is paused: {why}",
            advice=f"`ringrift resume {state.config}` lets it go on.",
        )


def training_slot(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    if context.is_running and (hold := slot_of(state)) is not None:
        yield Observation(
            level=Level.NOTICE,
            text=f"the run does not train {state.config}: {hold.reason}",
            advice="It goes on when the slot is given back, or its holder is gone and the lease runs out.",
        )


def starving(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Work that is ordered and not taken, and stages that bring nothing although they could."""
    if not context.is_running or state.config in context.paused:
        return
    is_trained_by_other = slot_of(state) is not None
    for found in _starving(state, context):
        if not (is_trained_by_other and found.evidence["stage"] == "train"):
            yield found


def _starving(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    under_way = {job.job_id for job in context.running}
    for job in state.open_jobs.values():
        waits_s = context.now_s - max(job.issued_s, context.started_s)
        if job.job_id not in under_way and waits_s > WAITS_WARNING_S:
            yield _starves(state, job.kind, waits_s, f"{job.job_id} waits for a worker")
    yield from _late(state, context)


def _late(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Stages without an open job that have brought nothing for long."""
    limit_s = max(WAITS_WARNING_S, JOBS_LONG * context.rules.selfplay_job_s)
    newest = state.newest_model
    shard = next(reversed(state.shards.values()), None)
    began_s = max(state.first_s, context.started_s)
    since = {"selfplay": began_s if shard is None else max(began_s, shard.made_s)}
    if waiting := open_candidates(state):
        played = [match.at_s for match in state.matches[-1:]]
        since["evaluate"] = max([began_s, waiting[-1].made_s, *played])
    if state.bucket.available > 2 * context.rules.bucket.chunk_steps:  # whatever is being judged
        since["train"] = max(began_s, began_s if newest is None else newest.made_s)
    for kind, last_s in since.items():
        late_s = context.now_s - last_s
        if late_s > limit_s and not state.open_of(kind):
            yield _starves(state, kind, late_s, f"{kind} has brought nothing and nothing of it is ordered")


def _starves(state: ConfigState, kind: str, late_s: float, what: str) -> Observation:
    return Observation(
        level=Level.PROBLEM if late_s > WAITS_PROBLEM_S else Level.WARNING,
        text=f"{state.config} starves: {what}, for {late_s / 60:.0f} minutes",
        advice=f"`ringrift explain {state.config}` says why; add workers if all are busy.",
        evidence={"stage": kind, "waits_s": late_s},
    )


def workers(context: ExaminationContext) -> Iterator[Observation]:
    ought_to_be = context.is_running and context.has_workers and context.now_s - context.started_s > 60
    if ought_to_be and not context.workers:
        yield Observation(
            level=Level.PROBLEM,
            text="the run is alive and no worker is",
            advice="`ringrift daemons` shows what ended them; starting the run again brings them back.",
        )
    for worker in context.workers:
        alive_s = worker.at_s - worker.started_s
        if context.run_paused is not None and not worker.failed:
            continue  # it has nothing to do
        if alive_s > WORKER_IDLE_S and not worker.done and not worker.busy:
            failed = f" and failed {worker.failed} times" if worker.failed else ""
            yield Observation(
                level=Level.PROBLEM if worker.failed else Level.WARNING,
                text=f"worker {worker.name} has finished nothing in {alive_s / 60:.0f} minutes{failed}",
                advice=f"Look at its log on {worker.node}, and at what it may claim (kinds, capabilities).",
                evidence={"worker": worker.name, "failed": worker.failed},
            )
        elif worker.failed > max(5, worker.done):
            yield Observation(
                level=Level.PROBLEM,
                text=f"worker {worker.name} failed {worker.failed} jobs and finished {worker.done}",
                advice=f"Look at its log on {worker.node}: memory, disk, or a broken installation.",
                evidence={"worker": worker.name, "failed": worker.failed, "done": worker.done},
            )


def disk(context: ExaminationContext) -> Iterator[Observation]:
    free = context.disk_free_bytes
    if free is None:
        return
    share = free / context.disk_total_bytes if context.disk_total_bytes else 1.0
    grave = free < DISK_PROBLEM_BYTES or share < DISK_PROBLEM_SHARE
    if grave or free < DISK_WARNING_BYTES or share < DISK_WARNING_SHARE:
        yield Observation(
            level=Level.PROBLEM if grave else Level.WARNING,
            text=f"{free / GIB:.1f} GiB ({share:.0%}) are free where the data lie",
            advice="Make room, or move the data folder to a larger disk; a full disk stops the run.",
            evidence={"free_bytes": free},
        )


def clock(context: ExaminationContext) -> Iterator[Observation]:
    if abs(context.clock_jump_s) >= CLOCK_JUMP_S:
        where = "forward" if context.clock_jump_s > 0 else "back"
        yield Observation(
            level=Level.WARNING,
            text=f"the clock was set {where} by {abs(context.clock_jump_s):.0f} s while the run lived",
            advice="Keep it in step (NTP): leases and ages do not go by it, but times are shown by it.",
            evidence={"jump_s": context.clock_jump_s},
        )


# Checks of what a run keeps: its facts against the high-water mark, and the files that its facts name.
#
# Files are read whole, those that are needed next first, as far as a bound on the bytes goes. One that is not
# here is no damage by itself: it may have been given up because other nodes have it. The champion never is.


READ_BYTES_MAX = 2 << 30
NAMED_MAX = 5
CHAMPION = "champion"


async def store_findings(kv: KeyValue, settings: Settings) -> list[Finding]:
    """Whether the database is whole, and whether the run had come further than it knows."""
    found = await check_store(kv, settings.data_dir)
    damaged = await asyncio.to_thread(check_whole, SqliteConfig.from_settings(settings))
    advice = "Restore a backup with `ringrift data restore`, or `ringrift rebuild`."
    lost = [
        Finding(check="store", level=Level.PROBLEM, text=what, advice=advice)
        for what in (*found.lost, *damaged)
    ]
    return lost + [Finding(check="store", level=Level.WARNING, text=note) for note in found.notes]


async def file_findings(
    blobs: Blobs, states: Sequence[ConfigState], *, bytes_max: int = READ_BYTES_MAX
) -> list[Finding]:
    """Which files that the facts name are damaged or not here."""
    found, left = [], bytes_max
    for state in states:
        missing, damaged = [], []
        for what, digest in needed_files(state):
            size = await blobs.size(digest)
            if size is None:
                missing.append(f"{what} {digest}")
            elif size <= left:
                left -= size
                try:
                    await blobs.verify(digest)
                except (Corrupt, KeyError):
                    damaged.append(f"{what} {digest}")
        without_champion = any(text.startswith(CHAMPION) for text in missing)
        for texts, level, how, advice in (
            (damaged, Level.PROBLEM, "damaged", "A job that needs one sets it aside and looks for a copy."),
            (
                missing,
                Level.PROBLEM if without_champion else Level.NOTICE,
                "not here",
                "If no other node or archive has them they are lost.",
            ),
        ):
            if texts:
                named = ", ".join(texts[:NAMED_MAX]) + (", …" if len(texts) > NAMED_MAX else "")
                text = (
                    f"files that the facts of {state.config} name and that are {how} ({len(texts)}): {named}"
                )
                found.append(
                    Finding(check="files", level=level, text=text, advice=advice, config=state.config)
                )
    return found


def needed_files(state: ConfigState) -> Iterator[tuple[str, str]]:
    """What each file is, and its digest; those that are needed next come first."""
    models = sorted(state.models.values(), key=lambda model: (model.digest != state.champion, -model.number))
    for model in (*models, *state.students.values()):
        yield (CHAMPION if model.digest == state.champion else "model"), model.digest
        yield "card", model.card
    if state.newest_samples is not None:
        yield "samples", state.newest_samples.digest
    for shard in reversed(state.shards.values()):
        if shard.state is not ShardState.REFUSED:
            yield "games", shard.digest
            if shard.report is not None:
                yield "report", shard.report


# Checks of the games and of the learning from them, by the state of a config.


# Checks of the games: are they distinct, whole, decided, legal, and searched well enough to learn from?


RECENT_SHARDS = 200
GAMES_MIN = 50  # below this a share says little
DUPLICATES_WARNING, DUPLICATES_PROBLEM = 0.01, 0.10
CUT_OFF_WARNING, CUT_OFF_PROBLEM = 0.01, 0.10
REFUSED_WARNING, REFUSED_PROBLEM = 0.02, 0.25
DRAWS_ODD = 0.60
DRAWS_WHERE_NONE = 0.01
WORKER_TIMES_OTHERS = 5.0
WORKER_REFUSED_MIN = 0.05
DISPUTES_GRAVE = 3
SIMULATIONS_LOW = 8
SIMULATIONS_APART = 4.0
# RingRift always has a winner: there, a draw is a game that something cut short.
BOARDS_WITHOUT_DRAWS = ("hex8", "square8", "square19", "hexagonal")
CUT_OFF_REASONS = ("truncated", "unfinished")


def has_draws(config: str) -> bool:
    return board_and_players(config)[0] not in BOARDS_WITHOUT_DRAWS


def duplicates(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    games, reasons = _recent(state)
    share = _share(reasons["duplicate"], games)
    level = _level(share, games, DUPLICATES_WARNING, DUPLICATES_PROBLEM)
    if level is not None:
        yield Observation(
            level=level,
            text=f"{share:.1%} of the last {games:,} games of {state.config} were there before",
            advice="Look for workers that run with the same seed, and for shards that were handed in twice.",
            evidence={"games": games, "duplicates": reasons["duplicate"]},
        )


def cut_off(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    games, reasons = _recent(state)
    broken = sum(reasons[reason] for reason in CUT_OFF_REASONS)
    too_long, played = state.totals["cut_off"], state.totals["cut_off"] + state.games
    for cut, total, what in ((broken, games, "end before their end"), (too_long, played, "grew too long")):
        share = _share(cut, total)
        level = _level(share, total, CUT_OFF_WARNING, CUT_OFF_PROBLEM)
        if level is not None:
            yield Observation(
                level=level,
                text=f"{share:.1%} of {total:,} games of {state.config} {what}",
                advice="Raise the limit of moves; if games end early, look at the workers that wrote them.",
                evidence={"games": total, "cut_off": cut},
            )


def draws(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    matches = [match for match in state.matches[-RECENT_SHARDS:] if not match.recalled]
    games, drawn = sum(match.games for match in matches), sum(match.draws for match in matches)
    if seen := draws_observation(state.config, games, drawn, where="evaluation"):
        yield seen


def draws_observation(config: str, games: int, drawn: int, *, where: str) -> Observation | None:
    """Whether the share of draws is odd for this game."""
    share = _share(drawn, games)
    if games < GAMES_MIN:
        return None
    if not has_draws(config) and share > DRAWS_WHERE_NONE:
        level, why = Level.PROBLEM, "RingRift has no draws: these games were cut off"
        advice = "Raise the limit of moves of a game."
    elif share > DRAWS_ODD:
        level, why = Level.WARNING, "hardly anything can be learned from who won"
        advice = "Explore more (temperature, noise), or start games from varied positions."
    else:
        return None
    return Observation(
        level=level,
        text=f"{share:.1%} of {games:,} games of {config} in {where} are draws; {why}",
        advice=advice,
        evidence={"games": games, "draws": drawn},
    )


def refusals(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    games, reasons = _recent(state)
    share = _share(reasons.total(), games)
    level = _level(share, games, REFUSED_WARNING, REFUSED_PROBLEM)
    if level is not None:
        most, count = reasons.most_common(1)[0]
        yield Observation(
            level=level,
            text=f"the rules refuse {share:.1%} of the last {games:,} games of {state.config}, mostly {most}",
            advice=f"`ringrift job validate` on such a shard names the games; {count} are {most}.",
            evidence={"games": games, "reasons": dict(reasons)},
        )


def worker_refusals(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    """A worker whose games are refused far more often than those of the others."""
    games, refused = Counter[str](), Counter[str]()
    for shard in _recent_shards(state):
        games[shard.worker] += shard.games + shard.refused
        refused[shard.worker] += shard.refused
    for worker, count in games.items():
        share = _share(refused[worker], count)
        others = _share(refused.total() - refused[worker], games.total() - count)
        grave = share >= WORKER_REFUSED_MIN and share > WORKER_TIMES_OTHERS * others
        if count >= GAMES_MIN and grave and len(games) > 1:
            yield Observation(
                level=Level.PROBLEM,
                text=f"{share:.1%} of the games of worker {worker} are refused, {others:.1%} of the others'",
                advice=f"Stop it, check its memory and disk, and `ringrift recall --worker {worker}`.",
                evidence={"worker": worker, "games": count, "refused": refused[worker]},
            )


def comparisons(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Workers whose games differ when they are searched again."""
    for standing in state.workers.values():
        evidence = {"worker": standing.name, "faults": standing.faults, "disputed": standing.disputed}
        aside = standing.set_aside
        why = why_distrusted(state, standing)
        if aside is not None and aside.holds(context.now_s):
            from_s = suspect_since(state, standing)
            since = "" if from_s is None else f" --from {_moment(from_s)}"
            recall = f"; `ringrift recall --worker {standing.name}{since}` takes its games out"
            yield Observation(
                level=Level.WARNING,
                text=f"worker {standing.name} is set aside until {_moment(aside.until_s)}: {aside.reason}",
                advice=f"Check its memory and libraries, then `ringrift workers resume {standing.name}`"
                f"{recall if context.rules.set_aside_games == 'propose' else ''}.",
                evidence=evidence,
            )
        elif why:
            yield Observation(
                level=Level.PROBLEM,
                text=f"worker {standing.name} is not to be trusted, and nobody else plays: {why}",
                advice="Check the memory of its machine; another worker would take its place.",
                evidence=evidence,
            )
        elif standing.disputed:
            yield Observation(
                level=Level.WARNING if standing.disputed < DISPUTES_GRAVE else Level.PROBLEM,
                text=f"{standing.disputed} comparisons of games with {standing.name} are disputed: two "
                "workers say two things, and there is no third",
                advice="Start a third worker: it decides. `ringrift workers` shows the numbers.",
                evidence=evidence,
            )


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def search_budget(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Games without search teach nothing that the network did not know."""
    shards = [shard for shard in _recent_shards(state) if shard.state is ShardState.CHECKED]
    rows = sum(shard.rows for shard in shards)
    low = sum(shard.rows for shard in shards if shard.simulations < SIMULATIONS_LOW)
    if rows and _share(low, rows) > 0.1:
        least = min(shard.simulations for shard in shards)
        yield Observation(
            level=Level.PROBLEM,
            text=f"{low / rows:.0%} of the newest rows of {state.config} were played with {least} "
            f"simulations a move or a few more; a network cannot learn more from them than it knows",
            advice=f"Set simulations in [learning] to {SIMULATIONS_LOW} at the least, 32 or more is usual.",
            evidence={"rows": rows, "low": low, "simulations": least},
        )
    play, judge = context.rules.simulations, context.rules.evaluation_simulations
    if max(play, judge) > SIMULATIONS_APART * min(play, judge):
        yield Observation(
            level=Level.WARNING,
            text=f"games are played with {play} simulations a move and judged with {judge}: "
            "who is stronger there need not be stronger here",
            advice="Bring simulations and evaluation_simulations in [learning] closer together.",
            evidence={"simulations": play, "evaluation_simulations": judge},
        )


def _recent_shards(state: ConfigState) -> list[Shard]:
    judged = (
        shard
        for shard in reversed(state.shards.values())
        if shard.state in (ShardState.CHECKED, ShardState.REFUSED)
    )
    return list(islice(judged, RECENT_SHARDS))


def _recent(state: ConfigState) -> tuple[int, Counter[str]]:
    """Games of the newest checked shards, and why some were refused."""
    shards: Sequence[Shard] = _recent_shards(state)
    reasons: Counter[str] = Counter()
    for shard in shards:
        reasons.update(shard.reasons)
    return sum(shard.games + shard.refused for shard in shards), reasons


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _level(share: float, games: int, warning: float, problem: float) -> Level | None:
    if games < GAMES_MIN or share < warning:
        return None
    return Level.PROBLEM if share >= problem else Level.WARNING


# Checks of the learning: hold-out, calibration, losses, rows against steps, and solved positions.


HELD_GAMES_EXPECTED = 5.0
CALIBRATION_WARNING, CALIBRATION_PROBLEM = 0.15, 0.30
CALIBRATION_ROWS_MIN = 200
OVERFIT_TIMES = 1.5
RATIO_HIGH = 1.25  # of what the rules allow
FORFEITED_SHARE = 0.3
UNSPENT_CHUNKS = 4
CANARY_DROP = 0.10
CANARY_GAIN = 0.02
CANARY_MODELS = 4


def hold_out(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Without games that training never saw, nobody can tell learning from memorizing."""
    newest, level = state.newest_model, Level.PROBLEM
    if context.rules.hold_out == 0:
        text = f"no games of {state.config} are held out of training"
    elif newest is not None and newest.losses and newest.losses.get("best_held") is None:
        text = f"model {newest.number} of {state.config} was trained without held-out games"
        games = state.samples[newest.samples].games
        if games * context.rules.hold_out < HELD_GAMES_EXPECTED:  # that happens by chance with few games
            level = Level.NOTICE
    else:
        return
    yield Observation(
        level=level,
        text=f"{text}: learning cannot be told from memorizing",
        advice="Set hold_out in [learning] to 0.05; with few games, wait until some hundred are there.",
        evidence={"hold_out": context.rules.hold_out},
    )


def calibration(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    """Of positions called 0.6, do games end at 0.6 on average?"""
    newest = state.newest_model
    found = None if newest is None else newest.losses.get("calibration")
    if newest is None or not isinstance(found, Mapping):
        return
    if seen := calibration_observation(state.config, f"model {newest.number}", found):
        yield seen


def calibration_observation(config: str, who: str, found: Mapping[str, Any]) -> Observation | None:
    """What the table of a model says; None if it is fine or there are too few rows."""
    rows = sum(int(each["rows"]) for each in found.get("bins", ()))
    error, bias = float(found.get("error", 0.0)), float(found.get("bias", 0.0))
    if rows < CALIBRATION_ROWS_MIN or error < CALIBRATION_WARNING:
        return None
    direction = "too hopeful" if bias > error / 2 else "too gloomy" if bias < -error / 2 else "off both ways"
    return Observation(
        level=Level.PROBLEM if error >= CALIBRATION_PROBLEM else Level.WARNING,
        text=f"values of {who} of {config} are {error:.2f} off on {rows:,} held-out positions, {direction}",
        advice="More and fresher games, or a lower value_mix; else look for values of a wrong sign or seat.",
        evidence={"error": error, "bias": bias, "rows": rows},
    )


def losses(state: ConfigState, _context: ExaminationContext) -> Iterator[Observation]:
    newest = state.newest_model
    if newest is None:
        return
    train, held = newest.losses.get("train"), newest.losses.get("held")
    numbers = [value for part in (train, held) if isinstance(part, Mapping) for value in part.values()]
    if any(isinstance(value, float) and not math.isfinite(value) for value in numbers):
        yield Observation(
            level=Level.PROBLEM,
            text=f"the loss of model {newest.number} of {state.config} is no number",
            advice="Lower learning_rate in [learning].",
        )
    elif isinstance(train, Mapping) and isinstance(held, Mapping):
        seen, unseen = _total(train), _total(held)
        if seen > 0 and unseen > OVERFIT_TIMES * seen:
            yield Observation(
                level=Level.WARNING,
                text=f"model {newest.number} of {state.config} has a loss of {unseen:.2f} on held-out games "
                f"and {seen:.2f} on those it was trained on: it learns them by heart",
                advice="Fewer steps_per_row in [learning.bucket], a smaller preset, or more games.",
                evidence={"train": seen, "held": unseen},
            )


def ratio(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """Training is paid for by new rows: neither much more nor much less than they earn."""
    bucket, rules = state.bucket, context.rules.bucket
    if state.rows and bucket.spent > RATIO_HIGH * bucket.earned:
        yield Observation(
            level=Level.PROBLEM,
            text=f"{state.config} was trained {bucket.spent / state.rows:.1f} times on each of its "
            f"{state.rows:,} rows; {rules.steps_per_row:g} times are paid for",
            advice="Let it play until the rows pay for it again; recalled rows count as never earned.",
            evidence={"spent": bucket.spent, "earned": bucket.earned},
        )
    elif bucket.earned and bucket.forfeited > FORFEITED_SHARE * bucket.earned:
        yield Observation(
            level=Level.WARNING,
            text=f"{bucket.forfeited / bucket.earned:.0%} of what new rows of {state.config} earned was "
            "never trained: games come faster than training can use them",
            advice="More workers for training or a GPU, more simulations a move, or a larger chunk_steps.",
            evidence={"forfeited": bucket.forfeited, "earned": bucket.earned},
        )
    elif bucket.available > UNSPENT_CHUNKS * rules.chunk_steps and not state.open_of("train"):
        yield Observation(
            level=Level.WARNING,
            text=f"new rows of {state.config} have earned {bucket.available / rules.chunk_steps:.1f} "
            "trainings that were not made",
            advice=f"`ringrift explain {state.config}` says what training waits for.",
            evidence={"available": bucket.available},
        )


def canary(state: ConfigState, context: ExaminationContext) -> Iterator[Observation]:
    """A stronger model solves more of the positions whose solution is known."""
    seen = [each for each in context.diagnoses.get(state.config, ()) if each.canary and each.model]
    shares = [float(each.canary["kept"]) for each in seen if each.canary]
    if len(shares) < 2:
        return
    best, last = max(shares[:-1]), shares[-1]
    evidence = {"kept": shares[-CANARY_MODELS:], "best": best}
    if last < best - CANARY_DROP:
        yield Observation(
            level=Level.PROBLEM,
            text=f"the newest model of {state.config} keeps {last:.0%} of the solved positions, an "
            f"earlier one {best:.0%}",
            advice="Compare the two with `ringrift models show`; if games agree, recall the newer one.",
            evidence=evidence,
        )
    elif (
        len(shares) >= CANARY_MODELS
        and max(shares[-CANARY_MODELS:]) - min(shares) < CANARY_GAIN
        and last < 0.95
    ):
        yield Observation(
            level=Level.WARNING,
            text=f"{len(shares)} models of {state.config} keep no more of the solved positions ({last:.0%})",
            advice="Look at the search budget, the share of draws and the losses.",
            evidence=evidence,
        )


def _total(parts: Mapping[str, Any]) -> float:
    return math.fsum(float(parts[name]) for name in ("policy", "value") if name in parts)
