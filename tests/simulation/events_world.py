"""A simulated machine: processes on one log, which crash, stall, lose wake-ups and get their clock set."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass

from ringrift.coordination.dead_letter_queue import DeadLetterQueue
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import Unavailable
from ringrift.events.event import current_delivery
from ringrift.events.positions import DeliveryNotes, Identity, LogConnection
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings
from ringrift.testing.simulation import SimulatedRuntime

CROSSING, CHILD, LOCAL = "TRAINING_COMPLETED", "MODEL_PROMOTED", "CHECKPOINT_SAVED"
SUBSCRIPTIONS = {"trained": CROSSING, "promoted": CHILD, "saved": LOCAL, "everything": None}
HANDLER_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Start:
    """A handler was entered."""

    life: str  # process and how often it had started
    subscription: str
    publisher: str  # the life that published
    number: int
    redelivered: bool
    event_type: str
    seq: int  # in the log; 0 for an event that stays in its process


class FaultyLog:
    """The log of one process: sometimes it refuses, sometimes it does not hear that it grew."""

    def __init__(self, inner, world):
        self._inner, self._world = inner, world

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _maybe_refuse(self, what):
        if self._world.happens(0.03):
            self._world.faults[f"{what} refused"] += 1
            raise Unavailable(f"{what} refused")

    async def append(self, events):
        self._maybe_refuse("append")
        stored = await self._inner.append(events)
        if self._world.happens(0.2):
            await self._world.runtime.sleep(self._world.rng.random())  # the answer is slow
        return stored

    async def read(self, **arguments):
        self._maybe_refuse("read")
        return await self._inner.read(**arguments)

    async def commit(self, positions):
        self._maybe_refuse("commit")
        await self._inner.commit(positions)

    async def wait(self, *, after, timeout_s):
        if self._world.happens(0.1):
            self._world.faults["wake-up lost"] += 1
            await self._world.runtime.sleep(timeout_s)
        return await self._inner.wait(after=after, timeout_s=timeout_s)


class Letters:
    """The dead letters of one process; a crashed process can write none."""

    def __init__(self, queue):
        self.queue, self.dead = queue, False

    def capture_failure(self, failure, *, instance):
        if self.dead:
            raise Unavailable("this process is gone")
        return self.queue.capture_failure(failure, instance=instance)


class Process:
    """One life of one process: a router, its handlers, its retry loop and its publisher."""

    def __init__(self, world, name, count):
        self.world, self.name, self.life = world, name, f"{name}.{count}"
        self.engine = memory_engine(world.runtime, world.store)
        self.dlq = DeadLetterQueue(
            world.folder / "letters.db",
            max_retries=1000,
            base_backoff_seconds=1,
            max_backoff_seconds=30,
            runtime=world.runtime,
        )
        self.letters = Letters(self.dlq)
        self.notes = None
        around = Surroundings(
            runtime=world.runtime,
            settings=load_settings({"RINGRIFT_EVENT_HANDLER_TIMEOUT": str(HANDLER_TIMEOUT_S)}).settings,
            log_connection=LogConnection(open_log=self._open_log, claim=self._claim),
            dead_letters=self.letters,
        )
        self.router = UnifiedEventRouter(poll_interval=0.5, surroundings=around)
        self.dlq.serve(self.router)
        for subscription, event_type in SUBSCRIPTIONS.items():
            self.router.subscribe(event_type, self._handler(subscription), subscription)
        self.tasks = []

    async def _open_log(self):
        return FaultyLog(self.engine.events, self.world)

    async def _claim(self):
        self.notes = DeliveryNotes(self.world.folder, self.name)
        return Identity(instance=self.name, notes=self.notes, release=lambda: None)

    def _handler(self, subscription):
        world = self.world

        async def handle(event):
            if "publisher" not in event:
                return  # a report of the router
            key = (event["publisher"], event["number"])
            world.starts.append(
                Start(
                    self.life,
                    subscription,
                    *key,
                    event.redelivered,
                    event.event_type,
                    current_delivery.get().log_seq,
                )
            )
            fate = world.rng.random() if world.chaos else 1.0
            if fate < 0.05:
                world.faults["handler failed"] += 1
                raise ValueError("flaky")
            if fate < 0.06:
                world.faults["handler hung"] += 1
                await world.runtime.sleep(HANDLER_TIMEOUT_S * 4)
            if fate < 0.3:
                await world.runtime.sleep(world.rng.random())
            if event.event_type == CROSSING and fate > 0.9 and world.chaos:
                await self.publish(CHILD)
            world.completions[self.name, subscription, *key] += 1

        return handle

    async def publish(self, event_type):
        number = self.world.next_number(self.life)
        payload = {"publisher": self.life, "number": number}
        self.world.attempted.add((event_type, self.life, number))
        try:
            await self.router.publish(event_type, payload)
        except Unavailable:
            return  # told; the event may be there or not
        self.world.acknowledged.add((event_type, self.life, number))

    async def start(self):
        while True:
            try:
                await self.router.start()
                break
            except Unavailable:
                await self.world.runtime.sleep(0.1)
        spawn = asyncio.get_running_loop().create_task
        self.tasks = [spawn(self._publish_forever()), spawn(self._retry_forever())]

    async def _publish_forever(self):
        while True:
            await self.world.runtime.sleep(self.world.rng.random() * 0.5)
            if self.world.chaos:
                await self.publish(LOCAL if self.world.happens(0.1) else CROSSING)

    async def _retry_forever(self):
        while True:
            await self.world.runtime.sleep(2)
            await self.dlq.retry_failed_events(50)

    async def crash(self):
        """As `kill -9`: from this instant nothing of it reaches anything durable."""
        await self.engine.close()
        self.letters.dead = True
        crossing, dispatcher = self.router._crossing, self.router._dispatcher
        book, crossing._cursor_store = crossing._cursor_store, None
        self.dlq._store.release = lambda letter_id: None  # a retry under way keeps its claim
        doomed = [
            *self.tasks,
            crossing._reader,
            book and book.recorder,
            *dispatcher._tasks,
            *crossing._adopting,
        ]
        doomed = [task for task in doomed if task is not None]
        self.world.faults["crash"] += 1
        self.world.faults["crash in a handler"] += any(item.running for item in self.router._table)
        self.world.faults["crash in an append"] += bool(crossing._appending)
        for item in self.router._table:
            item.active = False
            item.mailbox.clear()
        while doomed:
            for task in doomed:
                task.cancel()
            await asyncio.wait(doomed)  # lets the loop reap those that had ended already
            doomed = [*dispatcher._tasks]
        if self.notes is not None:
            self.notes.close()
        self.dlq.close()

    async def stop(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.router.stop()
        self.dlq.close()


class World:
    """What happened, what was promised, and the faults that were reached."""

    NAMES = ("a", "b", "c")

    def __init__(self, seed, folder):
        self.runtime, self.folder = SimulatedRuntime(seed=seed), folder
        self.rng = self.runtime.rng
        self.store = MemoryStore()
        self.chaos = True
        self.faults, self.completions = Counter(), Counter()
        self.starts, self.attempted, self.acknowledged = [], set(), set()
        self.processes, self._lives, self._numbers = {}, Counter(), defaultdict(int)

    def happens(self, probability):
        return self.chaos and self.rng.random() < probability

    def next_number(self, life):
        self._numbers[life] += 1
        return self._numbers[life]

    async def boot(self, name):
        self._lives[name] += 1
        self.processes[name] = Process(self, name, self._lives[name])
        await self.processes[name].start()

    async def run(self, *, rounds):
        for name in self.NAMES:
            await self.boot(name)
        for _ in range(rounds):
            await self._one_fault()
        self.chaos = False

    async def _one_fault(self):
        rng = self.rng
        await self.runtime.sleep(rng.random() * 4)
        for _ in range(rng.randrange(20)):
            await self.runtime.sleep(0)  # so that it strikes between any two steps
        name, kind = rng.choice(self.NAMES), rng.random()
        if kind < 0.5:
            await self.processes[name].crash()
            await self.runtime.sleep(rng.choice((0, 0.1, 5)))
            await self.boot(name)
        elif kind < 0.6:
            self.faults["clean restart"] += 1
            await self.processes[name].stop()
            await self.boot(name)
        elif kind < 0.8:
            self.faults["clock jumped"] += 1
            self.runtime.wall_offset_s += rng.uniform(-600, 600)

    def expected(self):
        """Every (process, subscription, event) that an acknowledged event must have reached."""
        stored = {record.id for record in self.store.events.records}
        assert len(stored) == len(self.store.events.records)
        return {
            (process, subscription, publisher, number)
            for event_type, publisher, number in self.acknowledged
            if event_type != LOCAL
            for process in self.NAMES
            for subscription, wanted in SUBSCRIPTIONS.items()
            if wanted in (None, event_type)
        }

    async def settle(self, *, limit_s):
        """Wait until everything that was promised has happened."""
        deadline_s = self.runtime.monotonic_s() + limit_s
        while self.runtime.monotonic_s() < deadline_s:
            if self.expected() <= self.completions.keys() and not self.leftovers():
                return
            await self.runtime.sleep(5)

    def leftovers(self):
        """What still waits, or leaked, in the routers."""
        found = []
        for process in self.processes.values():
            crossing = process.router._crossing
            for item in process.router._table:
                cursor = crossing._cursor_store and crossing._cursor_store.cursor(item)
                outstanding = sorted(cursor.outstanding) if cursor else []
                state = (len(item.mailbox), item.running, outstanding)
                if state != (0, False, []):
                    found.append((process.life, item.name, state))
            if crossing._appending or process.router._dispatcher._tasks:
                found.append((process.life, dict(crossing._appending), process.router._dispatcher._tasks))
        return found
