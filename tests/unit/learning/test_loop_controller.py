"""Starting again: what was seen is not read again, what left the run is ended; and pictures cannot end it."""

import asyncio
import contextlib
import dataclasses
from functools import partial

import msgspec
from learning_story import RULES

from ringrift.coordination.backpressure import QueueMonitor, QueueMonitorDaemon
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.run_coordinator import StageDaemon, get_loop_waker
from ringrift.daemons.requests import DaemonRequest, DaemonRequests, DaemonVerb, RequestCarrier
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.errors import Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import EXPLAIN_PREFIX, STATUS_KEY, RunStatus
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import LEFT_REASON, Controller
from ringrift.learning.facts.facts import HEALTH_TOPIC, STAGES_TOPIC, JobEnded, JobIssued, Noted
from ringrift.learning.facts.high_water import read_mark
from ringrift.learning.facts.ledger import Ledger, read_facts
from ringrift.learning.facts.state import fold
from ringrift.learning.loop import StatusWriter, TrainingLoop
from ringrift.learning.plan.stages import (
    HELD_NOTED_S,
    LEVERS,
    HealthHold,
    StageMembers,
    health_note,
    hold_of,
    is_stopped,
    why_not_planning,
)
from ringrift.learning.replay import replay
from ringrift.learning.requests import ALL, Pauses
from ringrift.learning.status_view import AroundConfig, config_status
from ringrift.machine import NodeResources
from ringrift.process import process_scope
from ringrift.settings import Settings
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.backpressure import Announced, keep_announced, read_announced
from ringrift.work.job.protocol import JobArtifact, JobReport
from ringrift.work.limits import Pause
from ringrift.work.worker.records import WorkerRecord, worker_key

FIRST, SECOND = "square8_2p", "hex8_2p"


class Site:
    """An engine with one worker that somebody else plays."""

    def __init__(self):
        self.runtime = SimulatedRuntime()
        self.engine = memory_engine(self.runtime, MemoryStore())

    async def begin(self, *configs, engine=None, **more):
        record = WorkerRecord(
            name="w", node="n", pid=1, slots=2, busy=0, kinds=None, capabilities=("cpu",), cpus=1, gpus=0,
            memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=self.runtime.now_s(),
        )  # fmt: skip
        await self.engine.kv.put(worker_key("w"), msgspec.json.encode(record))
        controller = Controller(engine or self.engine, self.runtime, RULES, announcer=Silent(), **more)
        await controller.open(configs)
        return controller

    async def work(self):
        """Carry out one job of self-play."""
        (claim,) = await self.engine.queue.claim(Claimant(worker="w", node="n"), lease_s=60.0)
        shard = JobArtifact(
            name="s",
            kind="shard",
            digest=claim.id.ljust(64, "0"),
            size_bytes=1,
            counts={"games": 1, "rows": 1},
        )
        report = JobReport(
            status="done", worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=1.0, artifacts=(shard,)
        )
        await self.engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
        return claim.id


def settings_of(folder):
    return Settings(data_dir=folder, dlq_path=folder / "dead_letters.db")


def at_a_site(scenario):
    async def main():
        site = Site()
        try:
            await scenario(site)
        finally:
            await site.engine.close()

    simulate(main())


class Watched:
    """Notes from where on ended work is read."""

    def __init__(self, queue):
        self._queue, self.after = queue, []

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def ended(self, *, after, limit):
        self.after.append(after)
        return await self._queue.ended(after=after, limit=limit)


def test_a_new_start_does_not_read_all_ended_work_again():
    async def scenario(site):
        controller = await site.begin(FIRST)
        for _ in range(3):
            await controller.reconcile()
            await site.work()
        await controller.take_in_ends()
        await controller.remember_seen_end()
        await controller.reconcile()
        late = await site.work()  # ends while nobody looks
        watched = Watched(site.engine.queue)
        again = await site.begin(FIRST, engine=dataclasses.replace(site.engine, queue=watched))
        await again.reconcile()
        assert watched.after[0] > 0
        assert len(again.state(FIRST).shards) == 4
        assert late not in again.state(FIRST).open_jobs

    at_a_site(scenario)


def test_work_of_a_config_that_left_the_run_is_cancelled_and_ordered_again_when_it_returns():
    async def scenario(site):
        controller = await site.begin(FIRST, SECOND)
        await controller.reconcile()
        ours = set(controller.state(SECOND).open_jobs)
        assert ours
        await site.begin(FIRST)
        for job in ours:
            item = await site.engine.queue.get(job)
            assert (item.state, item.error) == (WorkState.CANCELLED, LEFT_REASON)
        ends = [fact for fact in await read_facts(site.engine.kv, SECOND) if isinstance(fact, JobEnded)]
        assert {fact.job_id for fact in ends if fact.cancelled} == ours
        back = await site.begin(SECOND)
        await back.reconcile()
        assert set(back.state(SECOND).open_jobs).isdisjoint(ours)
        assert back.state(SECOND).open_jobs
        assert not back.state(SECOND).failures

    at_a_site(scenario)


def test_what_a_config_had_finished_before_it_left_is_taken_in():
    async def scenario(site):
        controller = await site.begin(SECOND)
        await controller.reconcile()
        await site.work()
        await site.begin(FIRST)
        ledger = await Ledger.open(site.engine.kv, SECOND, bucket_rules=RULES.bucket)
        assert len(ledger.state.shards) == 1

    at_a_site(scenario)


class Follower:
    """Notes which facts the mark covers, and compares whenever something is done that follows from facts."""

    def __init__(self, engine):
        self.engine, self.marks, self.looks, self.announced = engine, {}, [], 0

    async def keep(self, marks):
        self.marks = dict(marks)

    def note(self, _fact, _state):
        self.announced += 1

    async def publish(self):
        await self.look("published")

    async def look(self, what):
        for config in (FIRST, SECOND):
            facts = len(await read_facts(self.engine.kv, config))
            covered = self.marks[config].facts if config in self.marks else 0
            self.looks.append((what, facts - covered))

    def __getattr__(self, name):
        return getattr(self.engine.queue, name)

    async def add(self, items):
        await self.look("ordered")
        return await self.engine.queue.add(items)


def test_nothing_is_ordered_or_told_because_of_a_fact_that_the_mark_does_not_cover():
    async def scenario(site):
        await site.begin()
        follower = Follower(site.engine)
        watched = dataclasses.replace(site.engine, queue=follower)
        for _ in range(2):  # and after a start
            controller = Controller(watched, site.runtime, RULES, announcer=follower, keep_mark=follower.keep)
            await controller.open([FIRST, SECOND])
            for _ in range(3):
                await controller.reconcile()
                await site.work()
            await controller.write(FIRST, Noted(at_s=0.0, topic="t", text="found by somebody else"))
            follower.marks = {}  # the process died between the two
        assert {what for what, _ in follower.looks} == {"ordered", "published"}
        assert [look for look in follower.looks if look[1]] == []
        assert follower.announced

    at_a_site(scenario)


def test_the_mark_on_disk_covers_all_facts_after_every_pass(tmp_path):
    async def scenario(site):
        loop = TrainingLoop(site.engine, site.runtime, a_router(), settings_of(tmp_path))
        loop.controller._safeguards = None  # those look at this machine
        await site.begin()
        await loop.controller.open([FIRST])
        for _ in range(3):
            await loop.controller.reconcile()
            assert read_mark(tmp_path).configs[FIRST].facts == len(await read_facts(site.engine.kv, FIRST))
            await site.work()
        await loop.controller.take_in_ends()
        assert read_mark(tmp_path).configs[FIRST].facts == len(await read_facts(site.engine.kv, FIRST))

    at_a_site(scenario)


def test_ended_work_is_taken_in_at_once_and_nobody_looks_for_it(tmp_path):
    async def scenario(site):
        loop = TrainingLoop(site.engine, site.runtime, a_router(), settings_of(tmp_path))
        loop._status._doctor.findings = healthy
        loop.controller._safeguards = None  # those look at this machine
        looks, ended = [], site.engine.queue.ended

        async def counted(**page):
            looks.append(page)
            return await ended(**page)

        site.engine.queue.ended = counted
        await site.begin()
        running = asyncio.create_task(some_seconds(loop, [FIRST]))
        await asyncio.sleep(2.3)  # a pass is over, and the next one is not due
        begun_s = site.runtime.now_s()
        await site.work()
        await asyncio.sleep(0.01)
        (end,) = (fact for fact in await read_facts(site.engine.kv, FIRST) if isinstance(fact, JobEnded))
        assert end.at_s - begun_s < 0.01
        await running
        assert len(looks) <= loop.controller.passes + 3

    at_a_site(scenario)


def test_what_people_ask_for_is_read_as_often_for_three_configs_as_for_one():
    async def reads(site, *configs):
        controller = await site.begin(*configs)
        await controller.reconcile()
        counted, kv = [], site.engine.kv
        get, entries = kv.get, kv.entries

        async def counted_get(key):
            counted.append(key)
            return await get(key)

        async def counted_entries(*prefixes):
            counted.append(prefixes)
            return await entries(*prefixes)

        kv.get, kv.entries = counted_get, counted_entries
        await controller.reconcile()
        kv.get, kv.entries = get, entries
        return len(counted)

    found = []
    for configs in ((FIRST,), (FIRST, SECOND, "connect_four_2p")):

        async def scenario(site, configs=configs):
            found.append(await reads(site, *configs))

        at_a_site(scenario)
    assert found[0] == found[1] <= 1


# --- pictures --------------------------------------------------------------------------------------------


async def healthy(_states, _rules):
    """A doctor that needs no thread, which simulated time would not wait for."""
    return ()


def a_router():
    return UnifiedEventRouter(enable_cross_process_polling=False)


async def some_seconds(loop, configs):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            await loop.run(configs)


def test_a_picture_that_cannot_be_drawn_does_not_end_learning(tmp_path):
    async def scenario(site):
        loop = TrainingLoop(site.engine, site.runtime, a_router(), settings_of(tmp_path))
        loop._status._doctor.findings = healthy
        loop.controller._safeguards = None  # those look at this machine
        put = site.engine.kv.put

        async def fails(key, *args, **kwargs):
            if key == STATUS_KEY:
                raise Unavailable("the disk is full")
            return await put(key, *args, **kwargs)

        site.engine.kv.put = fails
        await some_seconds(loop, [FIRST])
        assert loop.status_writes_failed > 1
        assert "the disk is full" in loop.status_problem
        assert loop.controller.passes > 1
        site.engine.kv.put = put
        await some_seconds(loop, [FIRST])
        assert loop.status_problem == ""

    at_a_site(scenario)


def test_a_doctor_that_fails_is_a_finding(tmp_path):
    async def scenario(site):
        controller = await site.begin(FIRST)
        settings = Settings(data_dir=tmp_path)
        writer = StatusWriter(site.engine, site.runtime, settings, controller, router=a_router())

        async def ill(states, rules):
            raise ZeroDivisionError("no games")

        writer._doctor.findings = ill
        await writer.write("running")
        stored = await site.engine.kv.get(STATUS_KEY)
        (finding,) = msgspec.json.decode(stored.value, type=RunStatus).findings
        assert "ZeroDivisionError: no games" in finding["text"]
        assert writer.doctor_failures == 1

    at_a_site(scenario)


def test_an_explanation_is_stored_only_when_it_changed(tmp_path):
    async def scenario(site):
        controller = await site.begin(FIRST)
        await controller.reconcile()
        settings = Settings(data_dir=tmp_path)
        writer = StatusWriter(site.engine, site.runtime, settings, controller, router=a_router())
        writer._doctor.findings = healthy
        await writer.write("running")
        before = await site.engine.kv.get(EXPLAIN_PREFIX + FIRST)
        await writer.write("running")
        assert await site.engine.kv.get(EXPLAIN_PREFIX + FIRST) == before
        await site.work()
        await controller.reconcile()
        controller.plans[FIRST].say("train", "something new")
        await writer.write("running")
        assert await site.engine.kv.get(EXPLAIN_PREFIX + FIRST) != before

    at_a_site(scenario)


def test_the_picture_counts_the_workers_that_were_asked_for(tmp_path):
    """Beside them is a slot that only prepares games; a run with two workers has two."""

    async def scenario(site):
        controller = await site.begin(FIRST)
        entry = await site.engine.kv.get(worker_key("w"))
        asked = msgspec.json.decode(entry.value, type=WorkerRecord)
        beside = msgspec.structs.replace(asked, name="prepare", slots=1, kinds=("validate", "export"))
        await site.engine.kv.put(worker_key("prepare"), msgspec.json.encode(beside))
        writer = StatusWriter(
            site.engine, site.runtime, Settings(data_dir=tmp_path), controller, router=a_router()
        )
        writer._doctor.findings = healthy
        assert (await writer.status_view("running")).workers == 2

    at_a_site(scenario)


def test_nothing_of_a_paused_config_is_ordered_or_claimed_until_it_goes_on():
    async def scenario(site):
        pauses = Pauses(site.engine.kv)
        controller = await site.begin(FIRST, SECOND)
        await controller.reconcile()
        waiting = {item.id: item.group for item in await site.engine.queue.ready()}
        assert set(waiting.values()) == {FIRST, SECOND}
        await pauses.set(FIRST, Pause(reason="a look at it", by="anna", at_s=1.0))
        claims = await site.engine.queue.claim(Claimant(worker="w"), lease_s=600.0, limit=100)
        assert {claim.id for claim in claims} == {name for name, group in waiting.items() if group == SECOND}
        ordered = controller.state(FIRST).facts
        await controller.reconcile()
        assert controller.state(FIRST).facts == ordered
        assert {each.reason for each in controller.plans[FIRST].explanations} == {"paused: a look at it"}

        again = await site.begin(FIRST, SECOND)  # another process takes over
        await again.reconcile()
        assert again.state(FIRST).facts == ordered
        assert (
            await site.engine.queue.claim(Claimant(worker="w", kinds=frozenset({"selfplay"})), lease_s=60.0)
            == []
        )

        await pauses.end([FIRST])
        await again.reconcile()
        (claim,) = await site.engine.queue.claim(Claimant(worker="w"), lease_s=60.0)
        assert claim.payload["config"] == FIRST

    at_a_site(scenario)


# --- stages whose daemon rests -----------------------------------------------------------------------------

COORDINATOR = DaemonType.SELFPLAY_COORDINATOR


class Coordinator(StageDaemon):
    """Plans the games while it runs."""

    plans_as = COORDINATOR.value

    async def _run_cycle(self):
        pass


def manager_at(site, router):
    manager = DaemonManager(
        DaemonManagerConfig(loop_watchdog=False), runtime=site.runtime, bus=router, offload=at_once
    )
    manager.register_factory(
        COORDINATOR, lambda: Coordinator("games", router=router, runtime=site.runtime), depends_on=[]
    )
    return manager


def members_of(site, manager):
    """Of the daemons of *manager* only the one is started: all others are taken for running."""
    members = StageMembers(site.runtime, waker=get_loop_waker())
    members.reasons = partial(why_not_planning, manager)
    for name in LEVERS - {COORDINATOR.value}:
        members.join(name)
    members.complete()
    process_scope().put(StageMembers, members)
    return members


async def at_once(function):
    return function()


async def open_games(site):
    unended = await site.engine.queue.unended(after=0, limit=1000)
    return [item.id for _, item in unended if item.kind == "selfplay"]


def why(controller, stage="selfplay"):
    return next(each for each in controller.plans[FIRST].explanations if each.stage == stage)


async def measure(site, router, *, reason=""):
    """QUEUE_MONITOR measures, writes it down and says so."""
    now_s = site.runtime.now_s()
    await keep_announced(site.engine.kv, Announced(bool(reason), now_s, reason=reason, measured_s=now_s))
    if reason:
        payload = {"node_id": "n", "level": "high", "reason": reason}
        await router.publish("BACKPRESSURE_ACTIVATED", payload, "test")
    else:
        released = {"node_id": "n", "previous_level": "high", "reason": "drained"}
        await router.publish("BACKPRESSURE_RELEASED", released, "test")


def measured_at(site):
    async def measured():
        return (await read_announced(site.engine.kv)).why_held(site.runtime.now_s())

    return measured


def under_backpressure(scenario):
    """With a manager that hears what is said, and a loop that asks it."""

    async def main(site):
        router = UnifiedEventRouter(enable_cross_process_polling=False)
        manager = manager_at(site, router)
        manager.reactions.pressure = measured_at(site)
        members = members_of(site, manager)
        await manager.start(COORDINATOR)
        try:
            controller = await site.begin(FIRST, stages=members)
            await scenario(site, router, manager, controller)
        finally:
            await manager.shutdown()
            await router.stop()

    at_a_site(main)


def test_backpressure_really_stops_new_games_until_it_is_released():
    async def scenario(site, router, manager, controller):
        cause = {"reason": "pending_games holds 2000, 1000 is its soft limit"}
        await measure(site, router, **cause)
        await site.runtime.sleep(1.0)  # it ends
        await controller.reconcile()
        assert await open_games(site) == []
        told = why(controller)
        assert (told.will, told.paused) == (False, False)
        assert told.reason.startswith(
            f"SELFPLAY_COORDINATOR is stopped: backpressure: {cause['reason']} (since "
        )
        await controller.reconcile()
        facts = await read_facts(site.engine.kv, FIRST)
        notes = [fact for fact in facts if isinstance(fact, Noted) and fact.topic == STAGES_TOPIC]
        assert len(notes) == 1, "once, however often it is looked at"
        await measure(site, router)
        await site.runtime.sleep(1.0)
        await controller.reconcile()
        assert await open_games(site)
        assert "backpressure" not in why(controller).reason
        assert replay(FIRST, await read_facts(site.engine.kv, FIRST), controller.rules) == []

    under_backpressure(scenario)


def test_games_that_were_ordered_in_spite_of_backpressure_are_found_by_a_replay():
    async def scenario(site, router, manager, controller):
        await controller.reconcile()
        facts = await read_facts(site.engine.kv, FIRST)
        first = next(number for number, fact in enumerate(facts) if isinstance(fact, JobIssued))
        stop = {"daemon": COORDINATOR.value, "why": "backpressure", "since_s": facts[first].at_s}
        details = {"stopped": {COORDINATOR.value: stop}}
        note = Noted(at_s=facts[first].at_s, topic=STAGES_TOPIC, text="", details=details)
        assert replay(FIRST, facts, controller.rules) == []
        tampered = [*facts[:first], note, *facts[first:]]
        # The loop may act on the plan of before the note, but not after another fact.
        issued = [number for number, fact in enumerate(tampered) if isinstance(fact, JobIssued)]
        found = replay(FIRST, tampered, controller.rules)
        assert [each.number - 1 for each in found] == issued[1:]
        assert all("backpressure" in each.why for each in found)

    under_backpressure(scenario)


def test_a_stopped_coordinator_orders_no_games_and_is_no_failure():
    async def scenario(site, router, manager, controller):
        requests = DaemonRequests(site.engine.kv)
        await requests.ask(
            DaemonRequest(daemon=COORDINATOR.value, want=DaemonVerb.STOP, by="anna", reason="a test")
        )
        await RequestCarrier(site.engine.kv, manager, site.runtime).before_start()
        manager.repair()
        await site.runtime.sleep(1.0)
        await controller.reconcile()
        assert await open_games(site) == []
        told = why(controller)
        assert told.reason.startswith(
            "SELFPLAY_COORDINATOR is stopped: stopped by a person: anna, a test (since "
        )
        assert told.paused
        gates = config_status(
            controller.state(FIRST),
            AroundConfig(
                plan=controller.plans[FIRST], rules=RULES, curve=(), running=(), share=1.0, paused=None,
                prices={}, now_s=site.runtime.now_s(),
            ),
        )  # fmt: skip
        assert gates.blocked == {}

    under_backpressure(scenario)


def test_a_new_process_opens_what_only_the_last_one_had_closed():
    async def scenario(site, router, manager, controller):
        await measure(site, router, reason="full")
        await site.runtime.sleep(1.0)
        await controller.reconcile()
        fresh = manager_at(site, UnifiedEventRouter(enable_cross_process_polling=False))
        members = members_of(site, fresh)
        again = await site.begin(FIRST, stages=members)
        assert is_stopped(again.state(FIRST), COORDINATOR.value)
        await fresh.start(COORDINATOR)
        await again.reconcile()
        assert not is_stopped(again.state(FIRST), COORDINATOR.value)
        assert await open_games(site)
        await fresh.shutdown()

    under_backpressure(scenario)


# --- the daemon that measures ------------------------------------------------------------------------------

MONITOR = DaemonType.QUEUE_MONITOR
IDLE = NodeResources(cpu_percent=5, memory_percent=20, disk_percent=30, disk_free_gb=100, load=0.1, cores=4)
EXPORTS = 130


def with_queue_monitor(scenario):
    """QUEUE_MONITOR itself measures the queues of the site, as a daemon that can be stopped and started."""

    async def wired(site, router, manager, controller):
        async def engine():
            return site.engine

        async def machine():
            return IDLE

        def monitor():
            levels = QueueMonitor(engine, runtime=site.runtime, resources=machine)
            return QueueMonitorDaemon(monitor=levels, router=router, runtime=site.runtime)

        manager.register_factory(MONITOR, monitor, depends_on=[])
        await manager.start(MONITOR)
        await scenario(site, router, manager, controller)

    under_backpressure(wired)


async def add_exports(site):
    return await site.engine.queue.add([NewWork(kind="export") for _ in range(EXPORTS)])


async def drain(site, items):
    for item in items:
        await site.engine.queue.cancel(item, reason="not wanted any more")


def test_a_queue_monitor_that_starts_again_releases_what_its_predecessor_announced():
    async def scenario(site, router, manager, controller):
        told = []
        router.subscribe("BACKPRESSURE_RELEASED", lambda event: told.append(event.payload))
        waiting = await add_exports(site)
        await site.runtime.sleep(15)
        await controller.reconcile()
        assert await open_games(site) == []
        assert "backpressure: export_queue holds 130" in why(controller).reason
        await manager.stop(MONITOR)
        await drain(site, waiting)
        await manager.start(MONITOR)
        await site.runtime.sleep(90)
        await controller.reconcile()
        assert await open_games(site)
        assert [each["reason"] for each in told] == ["every queue has room again"]
        assert manager.is_running(COORDINATOR)
        assert replay(FIRST, await read_facts(site.engine.kv, FIRST), controller.rules) == []

    with_queue_monitor(scenario)


def test_without_a_queue_monitor_nothing_is_held_for_long():
    async def scenario(site, router, manager, controller):
        await add_exports(site)
        await site.runtime.sleep(15)
        assert not manager.is_running(COORDINATOR)
        await manager.stop(MONITOR)
        await site.runtime.sleep(90)
        await controller.reconcile()
        assert await open_games(site), "nobody knows any more how full the queue is"

    with_queue_monitor(scenario)


def test_pressure_that_is_measured_holds_for_as_long_as_it_lasts():
    async def scenario(site, router, manager, controller):
        await add_exports(site)
        for _ in range(20):
            await site.runtime.sleep(90)
            await router.publish("BACKPRESSURE_RELEASED", {"reason": "hearsay"}, "somebody")
            await site.runtime.sleep(1)
            assert not manager.is_running(COORDINATOR)
        await controller.reconcile()
        assert await open_games(site) == []

    with_queue_monitor(scenario)


def test_an_event_alone_stops_nothing():
    async def scenario(site, router, manager, controller):
        for told in ({"level": "stop"}, {"level": "stop", "reason": "hearsay"}):
            await router.publish("BACKPRESSURE_ACTIVATED", told, "somebody")
            await site.runtime.sleep(5)
            assert manager.is_running(COORDINATOR)
        await controller.reconcile()
        assert await open_games(site)

    with_queue_monitor(scenario)


# --- what the health of the run holds ----------------------------------------------------------------------

CRITICAL = "system health is critical (0.20)"


def held_for(site, *, whole, reason=CRITICAL, hold_s=6 * 3600.0):
    return HealthHold(reason=reason, until_s=site.runtime.now_s() + hold_s, whole=whole)


def that_holds(site, holds):
    """All daemons run, and new work waits for what *holds* gives."""
    members = StageMembers(site.runtime)
    for name in LEVERS:
        members.join(name)
    members.complete()
    members.holds = holds
    return members


async def health_notes(site, config):
    return [
        fact
        for fact in await read_facts(site.engine.kv, config)
        if isinstance(fact, Noted) and fact.topic == HEALTH_TOPIC
    ]


def test_critical_health_holds_new_work_of_all_configs_and_its_end_lets_it_go_on():
    async def scenario(site):
        holds = {ALL: held_for(site, whole=True)}
        controller = await site.begin(FIRST, SECOND, stages=that_holds(site, lambda: holds))
        for _ in range(5):
            await controller.reconcile()
            await site.runtime.sleep(2.0)
        assert await open_games(site) == []
        told = why(controller)
        assert (told.will, told.paused, told.reason) == (False, False, f"held: {CRITICAL}")
        assert told.until_s is not None
        assert len(await health_notes(site, SECOND)) == 1, "once, however often it is looked at"
        around = AroundConfig(
            plan=controller.plans[FIRST], rules=RULES, curve=(), running=(), share=1.0, paused=None,
            prices={}, now_s=site.runtime.now_s(),
        )  # fmt: skip
        status = config_status(controller.state(FIRST), around)
        assert status.blocked["selfplay"]["reason"] == f"held: {CRITICAL}"
        assert status.held_back == f"the health of the run: {CRITICAL}"
        holds.clear()
        await controller.reconcile()
        assert await open_games(site)
        assert "held" not in why(controller).reason
        for config in (FIRST, SECOND):
            assert replay(config, await read_facts(site.engine.kv, config), controller.rules) == []

    at_a_site(scenario)


def test_work_that_was_ordered_in_spite_of_a_hold_is_found_by_a_replay():
    async def scenario(site):
        controller = await site.begin(FIRST)
        await controller.reconcile()
        await site.work()
        await controller.reconcile()
        facts = await read_facts(site.engine.kv, FIRST)
        first = next(number for number, fact in enumerate(facts) if isinstance(fact, JobIssued))
        note = health_note(fold_of(facts[:first]), held_for(site, whole=True), at_s=facts[first].at_s)
        found = replay(FIRST, [*facts[:first], note, *facts[first:]], controller.rules)
        assert found
        assert all(CRITICAL in each.why for each in found)

    at_a_site(scenario)


def fold_of(facts):
    return fold(FIRST, facts, bucket_rules=RULES.bucket)


def test_a_regression_holds_its_own_config_only():
    async def scenario(site):
        holds = {FIRST: held_for(site, whole=False, reason="it lost 80 points")}
        controller = await site.begin(FIRST, SECOND, stages=that_holds(site, lambda: holds))
        await controller.reconcile()
        groups = {item.group for item in await site.engine.queue.ready()}
        assert groups == {SECOND}
        assert why(controller).reason == "held: it lost 80 points"

    at_a_site(scenario)


def test_a_hold_lasts_for_as_long_as_it_is_measured_and_its_notes_are_few():
    async def scenario(site):
        controller = await site.begin(
            FIRST, stages=that_holds(site, lambda: {ALL: held_for(site, whole=True)})
        )
        for _ in range(120):
            await controller.reconcile()
            await site.runtime.sleep(60.0)
        assert await open_games(site) == []
        assert len(await health_notes(site, FIRST)) <= 12, "in two hours"
        again = await site.begin(FIRST)  # a process that measures nothing
        await again.reconcile()
        assert await open_games(site), "what nobody knows holds nothing"

    at_a_site(scenario)


def test_a_note_that_nobody_renews_runs_out():
    async def scenario(site):
        controller = await site.begin(
            FIRST, stages=that_holds(site, lambda: {ALL: held_for(site, whole=True)})
        )
        await controller.reconcile()
        state, now_s = controller.state(FIRST), site.runtime.now_s()
        assert hold_of(state, now_s=now_s) is not None
        assert hold_of(state, now_s=now_s + HELD_NOTED_S) is None

    at_a_site(scenario)
