"""Which games are searched again by another worker, and who is set aside for what that finds.

Pure: the same state gives the same orders and decisions, so both can be replayed. Which worker of those that
live takes an order is chosen when it is put into the queue (`worker_for`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from math import inf, nextafter

import msgspec

from ringrift.learning.facts.facts import AnyFact, Recalled, WorkerSetAside
from ringrift.learning.facts.records import Shard, ShardState, Unfinished
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.trust import SUSPICION_MAX, WorkerStanding, are_games_recalled
from ringrift.learning.plan.orders import shard_name, unfinished_name
from ringrift.learning.plan.recall import active_recalls
from ringrift.learning.plan.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.work.job.orders import INPUTS, OUT, JobOrder
from ringrift.work.worker.records import WorkerRecord

STAGE = "recompute"
RECALL_ID = "set-aside-"
BY_PLAN, BY_PERSON = "plan", "person"
ACTIVE_S = 6 * 3600.0  # who brought games within that still plays
CLEAN_SHARDS_MIN = 2  # of others, before broken games are the fault of who brought them
SEED_DIGITS = 8


# --- orders -------------------------------------------------------------------------------------------------


def plan_recomputation(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Give games of each worker to another: a share of them, and some every so often."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.recompute_share:
        made.say(STAGE, "switched off")
        return
    if is_running(snapshot, made, STAGE):
        return
    for comparison in state.comparisons.values():
        order = msgspec.structs.replace(comparison.order, not_by=comparison.not_by())
        who = " and ".join(dict.fromkeys((comparison.player, *(each.worker for each in comparison.votes))))
        made.want(STAGE, order, f"{who} disagree about games of {comparison.player}; another search decides")
        return
    due = [(standing, why) for standing in state.workers.values() if (why := _why_due(snapshot, standing))]
    due.sort(key=lambda each: (each[0].asked_s or 0.0, each[0].name))
    for standing, why in due:
        chosen = _chosen_games(state, standing)
        if chosen is not None:
            made.want(STAGE, recompute_order(state, *chosen), f"games of {standing.name}: {why}")
            return
    made.say(STAGE, "the games of every worker were compared lately")


def _why_due(snapshot: Snapshot, standing: WorkerStanding) -> str:
    """Why some games of a worker are to be compared now; empty if they are not."""
    rules, now_s = snapshot.rules, snapshot.now_s
    if standing.is_set_aside(now_s) or not standing.shards_since or not standing.recent:
        return ""
    if standing.asked_s is None:
        return "none of them was compared yet"
    if standing.suspicion > 0:
        return "some differed lately"
    if standing.shards_since >= 1 / rules.recompute_share:
        return f"{standing.shards_since} files of games came since the last comparison"
    if not 0 <= now_s - standing.asked_s < rules.recompute_every_s:
        return "the last comparison is long ago"
    return ""


def _chosen_games(state: ConfigState, standing: WorkerStanding) -> tuple[Shard | Unfinished, JobOrder] | None:
    """One of the newest files, by a draw that nobody could know when the games were played."""
    newest = list(standing.recent)[-max(1, standing.shards_since) :]
    known = ((state.shards.get(digest) or state.unfinished.get(digest), order) for digest, order in newest)
    fit = [(made, order) for made, order in known if made is not None and _is_trusted(state, made)]
    return min(fit, key=lambda each: _draw(state, each[0].digest), default=None)


def _is_trusted(state: ConfigState, made: Shard | Unfinished) -> bool:
    if isinstance(made, Shard):
        return made.state in (ShardState.CHECKED, ShardState.UNCHECKED)
    return not are_games_recalled(active_recalls(state), made, state.unfinished)


def _draw(state: ConfigState, digest: str) -> str:
    """The time of the last fact is not known to whoever plays."""
    return hashlib.sha256(f"{digest} {state.last_s!r}".encode()).hexdigest()


def recompute_order(state: ConfigState, shard: Shard | Unfinished, played: JobOrder) -> JobOrder:
    """Search some moves of *shard* again, with all that *played* says."""
    name = shard_name(shard) if isinstance(shard, Shard) else unfinished_name(shard)
    params = {
        **played.params,
        "out": OUT,
        "shard": f"{INPUTS}/{name}",
        "sample_seed": int(_draw(state, shard.digest)[:SEED_DIGITS], 16),
        "played_on": shard.machine,
    }
    inputs = {**played.inputs, name: shard.digest}
    return JobOrder(config=state.config, params=params, inputs=inputs, not_by=(shard.worker,))


def worker_for(job_id: str, not_by: Sequence[str], workers: Iterable[WorkerRecord]) -> str | None:
    """Who computes next: somebody else if there is anybody, one with a free slot if possible, by lot."""
    able = [
        each
        for each in workers
        if not each.stopping and not each.set_aside and (each.kinds is None or STAGE in each.kinds)
    ]
    ranks = {name: rank for rank, name in enumerate(not_by, start=1)}

    def order(worker: WorkerRecord) -> tuple[int, bool, bytes]:
        lot = hashlib.sha256(f"{job_id} {worker.name}".encode()).digest()
        return ranks.get(worker.name, 0), not worker.free, lot

    best = min(able, key=order, default=None)
    return None if best is None else best.name


# --- decisions ----------------------------------------------------------------------------------------------


def decided_by_standing(snapshot: Snapshot) -> AnyFact | None:
    """Set a worker aside whose games fail, then recall what it brought since its games last agreed."""
    state, rules, now_s = snapshot.state, snapshot.rules, snapshot.now_s
    for standing in sorted(state.workers.values(), key=lambda each: each.name):
        aside = standing.set_aside
        if aside is not None and aside.holds(now_s):
            is_wanted = rules.set_aside_games == "recall" and aside.by != BY_PERSON  # who recalls by himself
            recall = _recall(state, standing) if is_wanted else None
            if recall is not None:
                return msgspec.structs.replace(recall, at_s=now_s)
            continue
        why = why_distrusted(state, standing)
        if why and others_play(state, standing, now_s):
            return WorkerSetAside(
                at_s=now_s,
                worker=standing.name,
                reason=why,
                until_s=now_s + rules.set_aside_s,
                by=BY_PLAN,
                evidence={
                    "faults": standing.faults,
                    "compared": standing.compared,
                    "last": list(standing.words),
                },
            )
    return None


def why_distrusted(state: ConfigState, standing: WorkerStanding) -> str:
    """Why a worker should get no work; empty if nothing speaks against it."""
    if standing.suspicion >= SUSPICION_MAX:
        return f"its games differ when they are searched again: {standing.words[-1]}"
    others = (each for each in state.workers.values() if each is not standing)
    if standing.refusals >= SUSPICION_MAX and any(each.clean_shards >= CLEAN_SHARDS_MIN for each in others):
        return f"its games break the rules and those of others do not: {standing.words[-1]}"
    return ""


def others_play(state: ConfigState, standing: WorkerStanding, now_s: float) -> bool:
    """Whether somebody is left: the only worker goes on, and the doctor says what is wrong with it."""
    return any(
        each is not standing and not each.is_set_aside(now_s) and now_s - each.last_games_s <= ACTIVE_S
        for each in state.workers.values()
    )


def _recall(state: ConfigState, standing: WorkerStanding) -> Recalled | None:
    """The games since the last good comparison; None if there are none, or they are recalled."""
    aside = standing.set_aside
    assert aside is not None
    recall_id = f"{RECALL_ID}{standing.name}-{aside.since_s:.3f}"
    from_s = suspect_since(state, standing)
    if recall_id in state.recalls or from_s is None or from_s > aside.since_s:
        return None
    return Recalled(
        at_s=0.0,
        recall_id=recall_id,
        reason=f"{standing.name} is set aside: {aside.reason}",
        worker=standing.name,
        from_s=from_s,
        until_s=nextafter(aside.since_s, inf),  # what came at that very moment too
    )


def suspect_since(state: ConfigState, standing: WorkerStanding) -> float | None:
    """When the first of the games came that no good comparison vouches for; None if there are none."""
    good_s = standing.good_until_s
    files: list[Shard | Unfinished] = [*state.shards.values(), *state.unfinished.values()]
    return min(
        (
            made.made_s
            for made in files
            if made.worker == standing.name
            and made.can_be_recomputed
            and (good_s is None or made.made_s > good_s)
        ),
        default=None,
    )
