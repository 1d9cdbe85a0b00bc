"""A simulated machine of any size whose jobs take as long as their work, to see how its time is divided."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from learning_world import GAMES_LEFT, JOB_S, LEASE_S, ROWS_PER_GAME, World

from ringrift.learning.rules import LearningRules
from ringrift.work.job_orders import read_order
from ringrift.work.worker_records import worker_key

SAMPLE_STEPS_PER_S = 3_000.0  # of a training on one core
GAMES_PER_S, SIMULATIONS = 7.5, 32  # of self-play on one core, with so many simulations a move
PREPARING_SHARE = 0.02  # of the time that the games took, for checking as for exporting them
LOOK_S = 1.0  # how soon a worker sees that other work waits for its self-play
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


# As they are by default; what comes every half hour and more would be a step of its own in short runs.
RULES = {
    "bucket": LearningRules().bucket,
    "selfplay_job_s": LearningRules().selfplay_job_s,
    "diagnose_every_s": 0.0,
    "tournament_every_s": 0.0,
}


@dataclass(frozen=True, slots=True)
class Served:
    """A job that ended: when it ran, and for whom."""

    start_s: float
    end_s: float
    kind: str
    config: str


class EffortWorld(World):
    """Self-play gives way to other work within a second; workers come and go at given times.

    *changes* are pairs of hours and slots; *fast* workers do everything so many times faster.
    """

    def __init__(self, seed, *, configs, slots, changes=(), fast=None, rules=None):
        super().__init__(seed, configs=configs, slots=slots, faults=False, rules={**RULES, **(rules or {})})
        self.changes, self.fast, self.slots_first = tuple(changes), fast or {}, slots
        self.served = []
        self._playing = {}  # worker: what ends its self-play early
        self._tasks = {}

    async def run(self, hours):
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._control()), group.create_task(self._see_what_waits())]
            now_h = 0.0
            for until_h, slots in (*((at, slots) for at, slots in self.changes), (hours, None)):
                await self._have(group, self.slots)
                await self.runtime.sleep((until_h - now_h) * 3600)
                now_h, self.slots = until_h, slots
            for task in (*others, *self._tasks.values()):
                task.cancel()
        await self.settle()

    async def _have(self, group, slots):
        """So many workers from now on; those that go leave their jobs to the others."""
        for number in range(slots, len(self._tasks)):
            self._tasks.pop(f"w{number}").cancel()
            await self.engine().kv.delete(worker_key(f"w{number}"))
        for number in range(len(self._tasks), slots):
            self._tasks[f"w{number}"] = group.create_task(self._worker(f"w{number}"))

    async def _see_what_waits(self):
        queue = self.engine().queue
        while True:
            await self.runtime.sleep(LOOK_S)
            counts = await queue.counts()
            waiting = sum(
                number
                for kind, states in counts.items()
                for state, number in states.items()
                if kind != "selfplay" and str(state) == "ready"
            )
            for worker in list(self._playing)[:waiting]:
                self._playing.pop(worker).set()

    async def _carry_out(self, engine, name, claim):
        order = read_order(claim.payload)
        speed = self.fast.get(name, 1.0)
        start_s = self.runtime.monotonic_s()
        wanted_s = self._work_s(claim.kind, order) / speed * self.rng.uniform(0.8, 1.2)
        keeps = asyncio.create_task(self._renew(engine, claim))
        try:
            await self._work(name, claim.kind, wanted_s)
        finally:
            keeps.cancel()
        took_s = self.runtime.monotonic_s() - start_s
        if claim.kind == "selfplay" and order.params.get("hand_over"):
            played = took_s * speed * games_per_s(order)
            order.params["games"] = GAMES_LEFT + max(1, round(played))
        report = self._report(name, claim, order, took_s)
        await engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
        self._acknowledged(claim, order, report)
        self.served.append(Served(start_s, start_s + took_s, claim.kind, order.config))

    def _work_s(self, kind, order):
        if kind == "train":
            return order.params["steps"] * order.params["batch"] / SAMPLE_STEPS_PER_S
        if kind == "selfplay" and not order.params.get("hand_over"):
            return order.params["games"] / games_per_s(order)
        if kind in ("validate", "export"):
            rows = sum(self.truth.shard_rows.get(digest, 0) for digest in order.inputs.values())
            return 0.1 + PREPARING_SHARE * rows / ROWS_PER_GAME / GAMES_PER_S
        return float(order.params["seconds"] if kind == "selfplay" else JOB_S[kind])

    def _train(self, order):
        artifacts, fields = super()._train(order)
        return artifacts, {**fields, "samples_per_s": SAMPLE_STEPS_PER_S * self.fast.get(self._who, 1.0)}

    async def _work(self, name, kind, wanted_s):
        if kind != "selfplay":
            await self.runtime.sleep(wanted_s)
            return
        self._playing[name] = asked = asyncio.Event()
        waiting = asyncio.create_task(asked.wait())
        await asyncio.wait([waiting], timeout=wanted_s)
        waiting.cancel()
        self._playing.pop(name, None)

    async def _renew(self, engine, claim):
        while True:
            await self.runtime.sleep(LEASE_S / 3)
            await engine.queue.renew(claim.id, token=claim.token, lease_s=LEASE_S)


def games_per_s(order):
    return GAMES_PER_S * SIMULATIONS / order.params["simulations"]


# --- how the time is divided --------------------------------------------------------------------------------


def shares_over_time(served, *, window_s, step_s, of=lambda each: GROUPS[each.kind]):
    """{group: [(time, share of the work in the window that begins then)]}."""
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
    for last in range(width, int(end_s / step_s)):
        window = {group: sum(values[last - width : last]) for group, values in bins.items()}
        whole = sum(window.values()) or 1.0
        for group, work_s in window.items():
            found[group].append(((last - width) * step_s, work_s / whole))
    return found


@dataclass(frozen=True, slots=True)
class Settling:
    """How a share came to its value after a change."""

    final: float
    settled_s: float  # after the change; from then on it stays within the band
    crossings: int  # of its final value, by more than the band


def settling(points, *, change_s, until_s, band):
    """*points* are times and shares; those of the last third until *until_s* show the final value."""
    seen = [(at_s - change_s, share) for at_s, share in points if change_s <= at_s <= until_s]
    late = [share for at_s, share in seen if at_s >= (until_s - change_s) * 2 / 3]
    final = sum(late) / len(late)
    outside = [at_s for at_s, share in seen if abs(share - final) > band]
    sides = [1 if share > final else -1 for _, share in seen if abs(share - final) > band]
    crossings = sum(one != other for one, other in pairwise(sides))
    return Settling(final, max(outside, default=0.0), crossings)
