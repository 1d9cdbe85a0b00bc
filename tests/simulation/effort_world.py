"""Simulated machines of any size whose jobs take as long as their work, to see how their time is divided.

The loop's own controller orders the jobs. Workers of up to 16 slots claim them, self-play gives way to other
work within a second, and at given times slots and GPUs come and go.
"""

import heapq
import itertools
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import msgspec
from learning_world import GAMES_LEFT, LEASE_S, World, match_fields

from ringrift.engine.ports import Claimant
from ringrift.jobs.evaluation.evaluate import GateParams
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.plan.rules import LearningRules
from ringrift.statistics.match_evidence import Evidence, MatchVerdict
from ringrift.work.job.protocol import read_order
from ringrift.work.shares import board_and_players
from ringrift.work.worker.records import WorkerRecord, own_capability, worker_key

SLOTS_PER_WORKER = 16
LOOK_S = 1.0  # between two looks of the loop, and of a worker at what waits
PLAN_S = 10.0  # between two plans when nothing ends
YIELD_S = 1.0  # self-play gives way within
KNOWN_S = 100.0
SIMULATIONS = 32  # of a move, for which the paces are
PREPARING_SHARE = 0.02  # of the time that the games took, for checking as for exporting them
START_S = 0.3  # of every job, before its first game or step
GROUPS = {
    "selfplay": "playing",
    "train": "training",
    "evaluate": "judging",
    "tournament": "judging",
    "diagnose": "judging",
    "validate": "preparing",
    "export": "preparing",
    "recompute": "preparing",
}
# How a share is read, and what is asked of it; see `make effort`.
WINDOW_S, STEP_S, FINAL_S = 300.0, 15.0, 600.0
SETTLED_S_MAX, CROSSINGS_MAX, BAND, BAND_MAX = 600.0, 2, 0.03, 0.13
TURN_S = 30.0  # for one job of each config
ERROR_RATE = 0.05  # of the test for promotion
GPU_TIMES = {"playing": 10.0, "training": 20.0, "judging": 10.0, "preparing": 1.0}


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one core works on a config."""

    games_per_s: float
    rows_per_game: int
    sample_steps_per_s: float


# On the largest boards the smallest piece of training takes 130 s if it is not ended before, and a judgment
# of one game from every seat two minutes.
PACES = {
    "connect_four": Pace(15.0, 20, 6_000.0),
    "square8": Pace(7.5, 40, 3_000.0),
    "hex8": Pace(5.0, 50, 2_500.0),
    "square19": Pace(0.07, 300, 63.0),
    "hexagonal": Pace(0.05, 350, 55.0),
}


def pace_of(config):
    """Of its board; with more players a game is longer and has more rows."""
    board = config.rsplit("_", 1)[0]
    pace, times = PACES[board], board_and_players(config)[1] / 2
    return replace(
        pace, games_per_s=pace.games_per_s / times, rows_per_game=round(pace.rows_per_game * times)
    )


# As they are by default; what comes every half hour and more would be a step of its own in short runs.
RULES = {
    "bucket": LearningRules().bucket,
    "selfplay_job_s": LearningRules().selfplay_job_s,
    "diagnose_every_s": 0.0,
    "tournament_every_s": 0.0,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is from a time on: so many slots, of which the first have a GPU."""

    from_s: float
    slots: int
    gpu_slots: int = 0
    what: str = "at first"  # has changed


@dataclass(frozen=True, slots=True)
class Served:
    """A job that ended: when it ran, and for whom."""

    start_s: float
    end_s: float
    kind: str
    config: str


@dataclass(slots=True, eq=False)
class Running:
    """A job in a slot."""

    worker: str
    claim: object
    order: object
    start_s: float
    end_s: float
    speed: float
    report: object = None
    is_over: bool = False


@dataclass(slots=True)
class Worker:
    """A process that runs jobs."""

    name: str
    slots: int = 0
    gpu: bool = False
    running: list = field(default_factory=list)


class EffortWorld(World):
    """*machines* are in order of time; the first is there at once."""

    def __init__(self, seed, *, configs, machines, rules=None):
        first = machines[0].slots
        super().__init__(seed, configs=configs, slots=first, faults=False, rules={**RULES, **(rules or {})})
        self.machines = tuple(machines)
        self.served = []
        self.workers = {}
        self._ends, self._number = [], itertools.count()
        self._games_begun = defaultdict(float)  # config: the part of a game that is played

    async def run(self, until_s):
        engine = self.engine()
        self.controller = self._new_controller()
        await self.controller.open(self.configs)
        changes, looked_s, planned_s, known_s = list(self.machines), -math.inf, -math.inf, -math.inf
        while (now_s := self.runtime.monotonic_s()) < until_s:
            changed = bool(changes) and changes[0].from_s <= now_s
            if changed:
                await self._become(engine, changes.pop(0))
            if changed or now_s - known_s >= KNOWN_S:
                await self._tell_of_workers(engine)
                known_s = now_s
            await self._end_jobs(engine, now_s)
            if now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if await self.controller.take_in_ends() or changed or now_s - planned_s >= PLAN_S:
                    await self.controller.reconcile()
                    planned_s = now_s
            waiting = await self._begin_jobs(engine, now_s)
            self._ask_to_yield(waiting, now_s)
            next_end_s = self._ends[0][0] if self._ends else math.inf
            next_s = min(looked_s + LOOK_S, next_end_s, changes[0].from_s if changes else math.inf, until_s)
            await self.runtime.sleep(max(next_s - now_s, 0.001))
        await self.settle()
        self.facts = {config: await read_facts(engine.kv, config) for config in self.configs}

    # --- workers ------------------------------------------------------------------------------------------

    async def _become(self, engine, machine):
        """Have so many slots and GPUs; the jobs of workers that go are taken up by others."""
        before = self.workers
        self.workers, left = {}, machine.slots
        gpus = machine.gpu_slots
        for number in range(math.ceil(machine.slots / SLOTS_PER_WORKER)):
            name = f"w{number}"
            worker = before.pop(name, None) or Worker(name)
            worker.slots, worker.gpu = min(left, SLOTS_PER_WORKER), gpus > 0
            left, gpus = left - worker.slots, gpus - worker.slots
            self.workers[name] = worker
            for job in worker.running[worker.slots :]:
                await self._lose(engine, worker, job)
        for worker in before.values():
            for job in list(worker.running):
                await self._lose(engine, worker, job)
            await engine.kv.delete(worker_key(worker.name))

    async def _lose(self, engine, worker, job):
        job.is_over = True
        worker.running.remove(job)
        await engine.queue.renew(job.claim.id, token=job.claim.token, lease_s=LEASE_S)

    async def _tell_of_workers(self, engine):
        for worker in self.workers.values():
            record = WorkerRecord(
                name=worker.name, node="sim", pid=1, slots=worker.slots, busy=len(worker.running), kinds=None,
                capabilities=("cpu",), cpus=worker.slots, gpus=int(worker.gpu), memory_mb=1, memory_free_mb=1,
                load=0.0, started_s=0.0, at_s=self.runtime.now_s(),
            )  # fmt: skip
            await engine.kv.put(worker_key(worker.name), msgspec.json.encode(record), ttl_s=3 * KNOWN_S)

    async def _begin_jobs(self, engine, now_s):
        """Fill the slots that are free; return how much other work than games is left waiting."""
        items = self.store.queue.unended.values()
        for worker in self.workers.values():
            free = worker.slots - len(worker.running)
            if not free or not any(str(item.state) == "ready" for item in items):
                continue
            who = Claimant(
                worker=worker.name, node="sim", capabilities=frozenset({own_capability(worker.name)})
            )
            # The lease is as if it were renewed for as long as the job takes.
            for claim in await engine.queue.claim(who, lease_s=24 * 3600.0, limit=free):
                self._begin(worker, claim, now_s)
        return sum(1 for item in items if str(item.state) == "ready" and item.new.kind != "selfplay")

    def _begin(self, worker, claim, now_s):
        order = read_order(claim.payload)
        speed = GPU_TIMES[GROUPS[claim.kind]] if worker.gpu else 1.0
        job = Running(worker.name, claim, order, now_s, now_s, speed)
        job.end_s = now_s + START_S + self._work_s(job) * self.rng.uniform(0.9, 1.1)
        worker.running.append(job)
        heapq.heappush(self._ends, (job.end_s, next(self._number), job))

    def _ask_to_yield(self, waiting, now_s):
        for worker in self.workers.values():
            for job in worker.running:
                if waiting <= 0:
                    return
                if job.claim.kind == "selfplay":
                    waiting -= 1
                    if job.end_s > now_s + YIELD_S:
                        job.end_s = now_s + self.rng.uniform(0.2, YIELD_S)
                        heapq.heappush(self._ends, (job.end_s, next(self._number), job))

    async def _end_jobs(self, engine, now_s):
        while self._ends and self._ends[0][0] <= now_s:
            end_s, _, job = heapq.heappop(self._ends)
            if job.is_over or end_s > job.end_s:
                continue
            job.is_over = True
            self.workers[job.worker].running.remove(job)
            report = self._report(job.worker, job.claim, job.order, now_s - job.start_s, job)
            await engine.queue.complete(job.claim.id, token=job.claim.token, result=report.as_result())
            self._acknowledged(job.claim, job.order, report)
            self.served.append(Served(job.start_s, now_s, job.claim.kind, job.order.config))

    # --- what jobs take and bring ---------------------------------------------------------------------------

    def _work_s(self, job):
        kind, params, pace = job.claim.kind, job.order.params, pace_of(job.order.config)
        if kind == "selfplay":
            wanted_s = params["games"] / _games_per_s(job)
            return min(wanted_s, params["seconds"]) if params.get("hand_over") else wanted_s
        if kind == "train":
            wanted_s = params["steps"] * params["batch"] / pace.sample_steps_per_s / job.speed
            return min(wanted_s, params["seconds"])
        if kind == "evaluate":
            job.report = self._judged(job)
            return sum(match["games"] for match in job.report) / pace.games_per_s / job.speed
        rows = sum(self.truth.shard_rows.get(digest, 0) for digest in job.order.inputs.values())
        return 0.1 + PREPARING_SHARE * rows / pace.rows_per_game / pace.games_per_s

    def _report(self, name, claim, order, took_s, job):
        self._job, self._took_s = job, took_s
        return super()._report(name, claim, order, took_s)

    def _selfplay(self, order):
        """As many games as the time was enough for; those that go on are handed over, where that is asked."""
        config, pace, games = order.config, pace_of(order.config), order.params["games"]
        artifacts, told = super()._selfplay(order)
        left = 0
        if order.params.get("hand_over"):
            self._games_begun[config] += max(0.0, self._took_s - START_S) * _games_per_s(self._job)
            games = min(int(self._games_begun[config]), games - 1)
            self._games_begun[config] -= games
            left = min(GAMES_LEFT, order.params["games"] - games)
        counts = {"games": games, "rows": games * pace.rows_per_game}
        made = [msgspec.structs.replace(artifacts[0], counts=counts)] if games else []
        if left:
            made.append(self._artifact("unfinished", games=left, moves=9 * left))
        for each in made:
            self.truth.altered[each.digest], self.truth.player[each.digest] = 0.0, self._who
        return made, told

    def _validate(self, order):
        reports = []
        for digest in order.inputs.values():
            rows = self.truth.shard_rows[digest]
            games = rows // pace_of(order.config).rows_per_game
            reports.append(self._artifact("report", shard=digest, games=games, refused=0, rows=rows))
        return reports, {}

    def _train(self, order):
        """As many steps as the time was enough for, at the speed of the worker."""
        speed = pace_of(order.config).sample_steps_per_s * self._job.speed
        done = int(max(0.0, self._took_s - START_S) * speed / order.params["batch"])
        steps = max(1, min(order.params["steps"], done))
        order.params["steps"] = steps
        artifacts, fields = super()._train(order)
        return artifacts, {**fields, "samples_per_s": speed}

    def _evaluate(self, _order):
        return [], {"matches": self._job.report}

    def _judged(self, job):
        """A few games at a time, one gate after another until one is not passed or the time is over."""
        order, matches, played = job.order, [], 0
        players, candidate = board_and_players(order.config)[1], order.params["candidate"]
        rate = pace_of(order.config).games_per_s * job.speed
        batch = max(players, order.params["batch"] // (2 * players) * players)
        games_max = max(batch, order.params["seconds"] * rate)
        for gate in msgspec.convert(order.params["gates"], tuple[GateParams, ...]):
            test, found = gate.match_test(players), gate.prior.evidence(players)
            results = Evidence(players)
            while test.result(found).verdict is MatchVerdict.OPEN and played < games_max:
                games = max(players, min(batch, gate.games - found.games) // players * players)
                new = self._played(order, candidate, gate.opponent, games=games)
                for each in (found, results):
                    each.add(new)
                played += games
            if results.games:
                matches.append({"opponent": gate.opponent, **match_fields(results)})
            if test.result(found).verdict is not MatchVerdict.PASSED:
                break
        return matches


def _games_per_s(job):
    pace = pace_of(job.order.config)
    return pace.games_per_s * job.speed * SIMULATIONS / job.order.params["simulations"]


# --- how the time is divided --------------------------------------------------------------------------------


def shares_over_time(served, *, window_s, step_s, of=lambda each: GROUPS[each.kind]):
    """{group: [(time, share of the work in the window that ends then)]}."""
    end_s = max(each.end_s for each in served)
    bins = defaultdict(lambda: [0.0] * (int(end_s / step_s) + 1))
    for each in served:
        at_s = each.start_s
        while at_s < each.end_s:
            number = int(at_s / step_s)
            until_s = min(each.end_s, (number + 1) * step_s)
            bins[of(each)][number] += until_s - at_s
            at_s = max(until_s, at_s + 1e-6)
    width = int(window_s / step_s)
    found = {group: [] for group in bins}
    for last in range(width, int(end_s / step_s) + 1):
        window = {group: sum(values[last - width : last]) for group, values in bins.items()}
        whole = sum(window.values()) or 1.0
        for group, work_s in window.items():
            found[group].append((last * step_s, work_s / whole))
    return found


@dataclass(frozen=True, slots=True)
class Settling:
    """How a share came to its value after a change."""

    final: float
    settled_s: float  # after the change; from then on it stays within the band
    crossings: int  # of its final value, by more than the band


def settling(points, *, change_s, until_s, band):
    """*points* are times and shares; the mean of those of the last ten minutes is the final value."""
    seen = [(at_s - change_s, share) for at_s, share in points if change_s + WINDOW_S <= at_s <= until_s]
    late = [share for at_s, share in seen if at_s > until_s - change_s - FINAL_S]
    final = sum(late) / len(late)
    outside = [at_s for at_s, share in seen if abs(share - final) > band]
    sides = [1 if share > final else -1 for _, share in seen if abs(share - final) > band]
    crossings = sum(one != other for one, other in pairwise(sides))
    return Settling(final, max(outside, default=WINDOW_S), crossings)


def measured(world, *, until_s):
    """What a run shows, and what of it is not as it should be (`missed`)."""
    states = [world.controller.state(config) for config in world.configs]
    worse, few = worse_candidates(world), min(machine.slots for machine in world.machines)
    longest_s = max(each.end_s - each.start_s for each in world.served)
    idle_s = [longest_without_work_s(world.served, config, until_s=until_s) for config in world.configs]
    ends_s = [*(machine.from_s for machine in world.machines[1:]), until_s]
    shares = shares_over_time(world.served, window_s=WINDOW_S, step_s=STEP_S)
    found = {
        "jobs": len(world.served),
        "trainings": sum(len(state.models) for state in states),
        "promotions": sum(len(state.promotions) for state in states),
        "rows_used": min(round(state.bucket.spent / 4 / max(1, state.rows), 3) for state in states),
        "without_work_s": round(max(idle_s), 1),
        # Whoever had the longest job has its next turn when the others have had as much, and a job more.
        "without_work_s_max": round(
            TURN_S * max(1.0, len(states) / few) + longest_s * (len(states) - 1) / few, 1
        ),
        "judged_though_worse": len(worse),
        "promoted_though_worse": sum(worse),
        "changes": [
            after_change(world.served, shares, machine, until_s=end_s)
            for machine, end_s in list(zip(world.machines, ends_s, strict=True))[1:]
        ],
    }
    return {**found, "missed": missed(found)}


def after_change(served, shares, machine, *, until_s):
    """How the shares came to their values when *machine* was there."""
    change_s = machine.from_s
    during = [each for each in served if change_s <= each.start_s and each.end_s <= until_s]
    worked = sum(each.end_s - each.start_s for each in during) / (until_s - change_s)
    longest_s = max(each.end_s - each.start_s for each in during)
    band = BAND + longest_s / worked / WINDOW_S
    return {
        "what": machine.what,
        "slots": machine.slots,
        "gpu_slots": machine.gpu_slots,
        "busy": round(worked / machine.slots, 3),
        "band": round(band, 3),
        "shares": {
            group: asdict(settling(points, change_s=change_s, until_s=until_s, band=band))
            for group, points in shares.items()
        },
    }


def worse_candidates(world):
    """Of each candidate that was judged and is really worse than the champion: whether it was promoted."""
    strength, found = world.truth.strength, []
    for config in world.configs:
        state = world.controller.state(config)
        promoted = {(each.model, each.previous) for each in state.promotions}
        tested = {(each.first, each.second) for each in state.matches if each.purpose == "promotion"}
        known = [pair for pair in tested if pair[1] in strength]
        found += [pair in promoted for pair in known if strength[pair[0]] < strength[pair[1]]]
    return found


def missed(found):
    told = []
    for change in found["changes"]:
        # Of five minutes of which one job is a large part there is no share that could settle.
        for group, each in change["shares"].items() if change["band"] <= BAND_MAX else ():
            if each["settled_s"] > SETTLED_S_MAX:
                told.append(f"{change['what']}: {group} settles after {each['settled_s']:.0f} s")
            if each["crossings"] > CROSSINGS_MAX:
                told.append(f"{change['what']}: {group} crosses its value {each['crossings']} times")
    if found["without_work_s"] > found["without_work_s_max"]:
        told.append(f"a config is without work for {found['without_work_s']:.0f} s")
    expected = ERROR_RATE * found["judged_though_worse"]
    if found["promoted_though_worse"] > expected + 3 * math.sqrt(expected) + 1:
        told.append(f"{found['promoted_though_worse']} worse candidates are promoted")
    return told


def longest_without_work_s(served, config, *, until_s):
    """The longest time in which no job of *config* ran."""
    longest_s = end_s = 0.0
    for each in sorted((each for each in served if each.config == config), key=lambda each: each.start_s):
        longest_s, end_s = max(longest_s, each.start_s - end_s), max(end_s, each.end_s)
    return max(longest_s, until_s - end_s)
