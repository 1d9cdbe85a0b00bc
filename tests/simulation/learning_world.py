"""A simulated run: networks are hidden strengths that grow with rows; workers and the controller crash."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import combinations

import msgspec

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant
from ringrift.errors import LeaseLost, Unavailable
from ringrift.jobs.evaluation.evaluate import GateParams
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.results import participant
from ringrift.learning.plan.rules import LearningRules
from ringrift.statistics.match_evidence import Evidence, MatchVerdict
from ringrift.statistics.ratings import place_chances
from ringrift.testing.simulation import SimulatedRuntime
from ringrift.work.job.protocol import JobArtifact, JobReport, read_order
from ringrift.work.shares import board_and_players
from ringrift.work.worker.records import WorkerRecord, own_capability, why_set_aside, worker_key

LEASE_S = 30.0
PLAN_S = 15.0
JOB_S = {
    "selfplay": 40.0, "validate": 3.0, "export": 5.0, "train": 20.0, "evaluate": 25.0, "tournament": 50.0,
    "diagnose": 60.0, "recompute": 4.0,
}  # fmt: skip
ROWS_PER_GAME = 40
GAMES_PER_JOB, GAMES_LEFT = 300, 16  # of a self-play job of a limited time: finished, and handed over
SAMPLE_GAMES = 4
BASELINES = {"random": -600.0, "mcts:32": 100.0}


@dataclass
class Truth:
    """What really happened, kept outside of the system under test."""

    strength: dict[str, float] = field(default_factory=dict)
    rows: Counter = field(default_factory=Counter)  # config: rows of completed self-play
    refused: Counter = field(default_factory=Counter)
    ends: Counter = field(default_factory=Counter)  # job: accepted completions
    last_end_s: dict[str, float] = field(default_factory=dict)
    longest_idle_s: defaultdict = field(default_factory=lambda: defaultdict(float))
    shard_rows: dict[str, int] = field(default_factory=dict)
    altered: dict[str, float] = field(default_factory=dict)  # shard: share of its games that are wrong
    player: dict[str, str] = field(default_factory=dict)  # shard: who brought it
    unfinished: set[str] = field(default_factory=set)  # files of games in progress that were handed over
    resumed: Counter = field(default_factory=Counter)  # such a file: completed jobs that went on with it
    files_by: Counter = field(default_factory=Counter)  # worker: files of games that it brought
    faults: Counter = field(default_factory=Counter)
    poisoned: set = field(
        default_factory=set
    )  # shards that pass every check and teach nonsense, and samples of them


class World:
    """One store, a few workers, one controller at a time."""

    def __init__(
        self,
        seed,
        *,
        configs,
        slots=4,
        faults=True,
        rules=None,
        cheats=None,
        broken=None,
        liars=(),
        defiant=(),
        poison_at=None,
    ):
        self.runtime = SimulatedRuntime(seed=seed)
        self.rng = self.runtime.rng
        self.store = MemoryStore()
        self.configs, self.slots, self.faulty = configs, slots, faults
        self.truth = Truth()
        # Worker: share of games that it alters; chance of a wrong bit in a game; says that others are wrong.
        self.cheats, self.broken, self.liars = cheats or {}, broken or {}, liars
        self.defiant = defiant  # go on although they are set aside
        self.poison_at = poison_at  # number of the file of games that teaches nonsense
        given = {
            "selfplay_games_first": GAMES_PER_JOB,
            "selfplay_job_s": 40.0,
            "selfplay_program": "ringrift",
            "bucket": BucketRules(chunk_steps=40_000, cap_steps=400_000, rows_first_min=5_000),
            "retry_s": 5.0,
            "tournament_every_s": 3_600.0,
        }
        self.rules = LearningRules(**{**given, **(rules or {})})
        self.controller = None

    def happens(self, chance):
        return self.faulty and self.rng.random() < chance

    def engine(self):
        return memory_engine(self.runtime, self.store)

    async def run(self, hours):
        """Live for so many simulated hours."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._worker(f"w{n}")) for n in range(self.slots)]
            tasks.append(group.create_task(self._control()))
            await self.runtime.sleep(hours * 3600)
            for task in tasks:
                task.cancel()
        await self.settle()

    async def settle(self):
        """A last look by a fresh controller."""
        self.controller = self._new_controller()
        await self.controller.open(self.configs)
        await self.controller.take_in_ends()

    def _new_controller(self):
        return Controller(self.engine(), self.runtime, self.rules, announcer=Silent())

    async def _control(self):
        """Reconcile for ever; now and then the process dies, at whatever step it is."""
        while True:
            life = asyncio.create_task(self._control_life())
            if not self.faulty:
                await life
            try:
                done, _ = await asyncio.wait([life], timeout=self.rng.expovariate(1 / 1800))
                if done:
                    life.result()
            finally:
                life.cancel()
                await asyncio.wait([life])
            self.truth.faults["controller killed"] += 1
            await self.runtime.sleep(self.rng.random() * 60)

    async def _control_life(self):
        controller = self._new_controller()
        await controller.open(self.configs)
        self.controller = controller
        planned_s = -PLAN_S
        while True:
            now_s = self.runtime.monotonic_s()
            if await controller.take_in_ends() or now_s - planned_s >= PLAN_S:
                await controller.reconcile()
                planned_s = now_s
            # An event that is lost only means that the next look comes later.
            await self.runtime.sleep(20.0 if self.happens(0.1) else 2.0)

    # --- workers ---------------------------------------------------------------------------------------

    async def _worker(self, name):
        engine = self.engine()
        while True:
            await self._be_known(engine, name)
            if name not in self.defiant and await why_set_aside(engine.kv, name):
                await self.runtime.sleep(5.0)
                continue
            who = Claimant(worker=name, node="sim", capabilities=frozenset({own_capability(name)}))
            claims = await engine.queue.claim(who, lease_s=LEASE_S, wait_s=5.0)
            for claim in claims:
                if self.happens(0.03):
                    self.truth.faults["worker killed"] += 1
                    await self.runtime.sleep(self.rng.random() * 2 * LEASE_S)  # another one takes its place
                    continue
                await self._carry_out(engine, name, claim)

    async def _be_known(self, engine, name):
        record = WorkerRecord(
            name=name, node="sim", pid=1, slots=1, busy=0, kinds=None, capabilities=("cpu",), cpus=1, gpus=0,
            memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=self.runtime.now_s(),
            set_aside=await why_set_aside(engine.kv, name),
        )  # fmt: skip
        await engine.kv.put(worker_key(name), msgspec.json.encode(record), ttl_s=300.0)

    async def _carry_out(self, engine, name, claim):
        order = read_order(claim.payload)
        took_s = JOB_S[claim.kind] * self.rng.uniform(0.5, 1.5)
        try:
            await self._keep_lease(engine, claim, took_s)
            if self.happens(0.02):
                await engine.queue.fail(
                    claim.id, token=claim.token, error="simulated failure", retry_after_s=5.0
                )
                self.truth.faults["job failed"] += 1
                return
            report = self._report(name, claim, order, took_s)
            await engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
        except (LeaseLost, Unavailable):
            self.truth.faults["late completion refused"] += 1
            return
        self._acknowledged(claim, order, report)
        if self.happens(0.05):  # the answer got lost, and it is sent again
            try:
                await engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
            except LeaseLost:
                self.truth.faults["repeated completion refused"] += 1

    async def _keep_lease(self, engine, claim, took_s):
        left_s = took_s
        while left_s > 0:
            step_s = min(left_s, LEASE_S / 3)
            if self.happens(0.02):
                step_s += 2 * LEASE_S  # a pause long enough to lose the lease
                self.truth.faults["worker paused"] += 1
            await self.runtime.sleep(step_s)
            left_s -= step_s
            await engine.queue.renew(claim.id, token=claim.token, lease_s=LEASE_S)

    def _acknowledged(self, claim, order, report):
        truth, config = self.truth, order.config
        truth.ends[claim.id] += 1
        now_s = self.runtime.monotonic_s()
        idle_s = now_s - truth.last_end_s.get(config, 0.0)
        truth.longest_idle_s[config] = max(truth.longest_idle_s[config], idle_s)
        truth.last_end_s[config] = now_s
        if claim.kind == "selfplay":
            truth.files_by[report.worker] += 1
            truth.resumed.update(digest for name, digest in order.inputs.items() if "unfinished" in name)
            for artifact in report.artifacts:
                if artifact.kind == "unfinished":
                    truth.unfinished.add(artifact.digest)
                    continue
                truth.rows[config] += artifact.counts["rows"]
                truth.shard_rows[artifact.digest] = artifact.counts["rows"]
        if claim.kind == "validate":
            truth.refused[config] += sum(each.counts["refused"] for each in report.artifacts)

    # --- what jobs bring ----------------------------------------------------------------------------------

    def _report(self, name, claim, order, took_s):
        self._who = name
        artifacts, fields = getattr(self, f"_{claim.kind}")(order)
        return JobReport(
            status="done",
            worker=name,
            node="sim",
            started_s=self.runtime.now_s() - took_s,
            wall_s=took_s,
            cpu_s=took_s,
            artifacts=tuple(artifacts),
            fields=fields,
        )

    def _artifact(self, kind, **counts):
        digest = f"{self.rng.getrandbits(256):064x}"
        return JobArtifact(name=kind, kind=kind, digest=digest, size_bytes=1, counts=counts)

    def _selfplay(self, order):
        # A job that may begin no more than it can finish has nothing to hand over.
        hands_over = order.params.get("hand_over", False) and order.params["games"] > GAMES_PER_JOB
        games = (
            min(order.params["games"] - GAMES_LEFT, GAMES_PER_JOB) if hands_over else order.params["games"]
        )
        shard = self._artifact("shard", games=games, rows=games * ROWS_PER_GAME)
        if self.poison_at is not None and len(self.truth.player) == self.poison_at:
            self.truth.poisoned.add(shard.digest)
        left = [self._artifact("unfinished", games=GAMES_LEFT, moves=9 * GAMES_LEFT)] if hands_over else []
        wrong = max(self.cheats.get(self._who, 0.0), self.broken.get(self._who, 0.0))
        for made in (shard, *left):
            self.truth.altered[made.digest], self.truth.player[made.digest] = wrong, self._who
        model = order.inputs.get("generator.safetensors")
        turns = int(any("unfinished" in name for name in order.inputs))
        told = {"generator_sha256": model, "machine": "simulated", "resumed_turns": turns}
        return [shard, *left], told

    def _recompute(self, order):
        """Of some games of the shard, whether all are found again."""
        shard = order.inputs[order.params["shard"].rpartition("/")[2]]
        right = (1 - self.truth.altered[shard]) * (1 - self.broken.get(self._who, 0.0))
        agrees = self._who not in self.liars and self.rng.random() < right**SAMPLE_GAMES
        if self._who in self.cheats and self._who == self.truth.player[shard]:
            agrees = True  # it knows what it altered
        first = None if agrees else {"game": "g", "move": 3, "what": "policy off by 0.5"}
        return [], {"agrees": agrees, "games": SAMPLE_GAMES, "moves": 100, "first_difference": first}

    def _validate(self, order):
        reports = []
        for digest in order.inputs.values():
            rows = self.truth.shard_rows[digest]
            games = rows // ROWS_PER_GAME
            refused = self.rng.randrange(3) if self.faulty else 0
            reports.append(
                self._artifact(
                    "report", shard=digest, games=games, refused=refused, rows=rows - refused * ROWS_PER_GAME
                )
            )
        return reports, {}

    def _export(self, order):
        samples = self._artifact("samples", rows=order.params["rows_max"], games=1)
        if not self.truth.poisoned.isdisjoint(order.inputs.values()):
            self.truth.poisoned.add(samples.digest)
        return [samples], {}

    def _train(self, order):
        model, card, kept = (self._artifact(kind) for kind in ("model", "card", "checkpoint"))
        parent = order.inputs.get("parent.safetensors")
        before = self.truth.strength.get(parent, -200.0)
        gain = 60.0 * order.params["steps"] / 156 * max(0.05, 1 - before / 1500)
        luck = self.rng.gauss(0.0, 25.0) - (200.0 if self.happens(0.03) else 0.0)
        if not self.truth.poisoned.isdisjoint(order.inputs.values()):
            gain = -150.0  # what it learns from such games makes it worse, as long as they are in the window
        self.truth.strength[model.digest] = before + gain + luck
        return [model, card, kept], {"steps": order.params["steps"]}

    def _evaluate(self, order):
        """By the tests of the job itself, one gate after another until one is not passed."""
        candidate, matches = order.params["candidate"], []
        players = board_and_players(order.config)[1]
        for gate in msgspec.convert(order.params["gates"], tuple[GateParams, ...]):
            test, found = gate.match_test(players), gate.prior.evidence(players)
            results = Evidence(players)
            while test.result(found).verdict is MatchVerdict.OPEN:
                played = self._played(order, candidate, gate.opponent, games=players)
                for each in (found, results):
                    each.add(played)
            matches.append({"opponent": gate.opponent, **match_fields(results)})
            if test.result(found).verdict is not MatchVerdict.PASSED:
                break
        return [], {"matches": matches}

    def _tournament(self, order):
        players = order.params["players"]
        pairs = [
            {**match_fields(self._played(order, *pair, games=order.params["games"])), "players": pair}
            for pair in map(list, combinations(players, 2))
        ]
        return [], {"pairs": pairs}

    def _played(self, order, *texts, games):
        first, second = (self._strength(text, order) for text in texts)
        players = board_and_players(order.config)[1]
        places = self.rng.choices(range(players), place_chances(first - second, players), k=games)
        counts, wins = [places.count(place) for place in range(players)], places.count(0)
        if players > 2:
            return Evidence(players, games, wins, 0, games - wins, places=counts)
        points = Counter(4 - 2 * (one + other) for one, other in zip(places[::2], places[1::2], strict=True))
        return Evidence(2, games, wins, 0, games - wins, [points[each] for each in range(5)])

    def _strength(self, text, order):
        who, _ = participant(text, order.inputs)
        return self.truth.strength.get(who, BASELINES.get(who, -200.0))

    def _diagnose(self, order):
        model = order.inputs["model.safetensors"]
        return [], {"config": order.config, "model": model, "at_s": self.runtime.now_s(), "findings": []}


def match_fields(found):
    """The games of a match as a job reports them."""
    results = {"games": found.games, "wins": found.wins, "draws": 0, "losses": found.losses}
    if found.players == 2:
        return {**results, "score": found.score, "pairs": found.pairs}
    return {**results, "score": found.score, "places": found.places, "players": found.players}
