"""Nodes with an engine and a disk each, a network that delays, loses and parts, and one who sees it all."""

import asyncio
import hashlib
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from data_holders import memory_holder
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.plane import DataPlane
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.promise_store import BEING_DELETED
from ringrift.data.protection.promises import Holder
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import RingRiftError, Unavailable
from ringrift.settings import load_settings
from ringrift.testing.simulation import SimulatedRuntime

FILES = 1
KEPT_S = 60.0  # by promises of this world
WRITE_S = 2.0  # at most
INTERRUPTED_S = 12.0  # between two steps, time for a whole deletion by another node
ANSWER_S = 8.0  # then whoever asked goes on without
DAY_S = 86_400.0
SETTINGS = load_settings({"RINGRIFT_DATA_DIR": "unused"}).settings


class WatchedDisk(dict):
    """The files of a node. Only the product pops one; what the world does to a disk goes other ways."""

    def __init__(self, on_delete):
        super().__init__()
        self._on_delete = on_delete

    def pop(self, digest, *default):
        if digest in self:
            self._on_delete(digest)
        return super().pop(digest, *default)


class SlowKv:
    """A store whose writes take their time. Right after one the process may die, or others act."""

    def __init__(self, kv, node):
        self._kv, self._node, self._rng = kv, node, node.world.rng

    def __getattr__(self, name):
        call = getattr(self._kv, name)
        if name not in ("put", "create", "update", "delete"):
            return call

        async def slow(*args, **kwargs):
            found = await call(*args, **kwargs)
            await self._node.world.step(self._node)
            await asyncio.sleep(self._rng.uniform(0.0, WRITE_S))
            return found

        return slow


class SimNode:
    """A node: what survives a crash (its store, its disk with the promises), and what does not."""

    def __init__(self, world, name):
        self.world, self.name, self.up, self.task = world, name, True, None
        self.now = asyncio.Event()  # it is to try to delete at once, content with one copy
        self.hurries = False
        self.runtime = SimulatedRuntime(seed=world.rng.getrandbits(32), hostname=name)
        self.runtime.wall_offset_s += world.rng.uniform(-1, 1) * DAY_S
        self.store = MemoryStore()
        self.new_disk()

    def new_disk(self):
        """An empty one: files and promises are gone."""
        self.disk = MemoryStore()
        self.disk.blobs.content = WatchedDisk(lambda digest: self.world.deleted(self, digest))
        self.holder = self.world.kind_of_holder(memory_holder(self.disk, self.entry, self.runtime))

    @property
    def entry(self):
        return next(each for each in self.world.entries if each.name == self.name)

    def plane(self):
        """As a process that starts sees it."""
        engine = memory_engine(self.runtime, self.store)
        engine = replace(engine, kv=SlowKv(engine.kv, self))
        disk = memory_engine(self.runtime, self.disk)
        return DataPlane(
            engine,
            SETTINGS,
            self.runtime,
            nodes=DataNodes(self.name, self.world.entries),
            blobs=disk.blobs,
            make_holders=lambda _plane: SimHolders(self.world, self),
            holder=self.holder,
        )

    def has_file(self):
        return any(self.sound(digest) for digest, _ in self.world.artifacts)

    def sound(self, digest):
        content = self.disk.blobs.content.get(digest)
        return content is not None and hashlib.sha256(content).hexdigest() == digest


class SimHolders:
    """The network as one node sees it."""

    def __init__(self, world, node):
        self._world, self._node = world, node

    async def keep(self, node, request):
        return await self._call(node, request, lambda holder: holder.keep(request))

    async def release(self, node, request):
        return await self._call(node, request, lambda holder: holder.release(request))

    async def close(self):
        pass

    async def _call(self, node, request, work):
        world, there = self._world, self._world.nodes[node.name]
        answer = asyncio.get_running_loop().create_future()
        # On its way the request is nobody's: it also arrives when whoever asked gave up, or died.
        world.spawn(self._deliver(there, work, answer))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            world.met["no answer"] += 1
            raise Unavailable("no answer") from None

    async def _deliver(self, there, work, answer):
        world, here = self._world, self._node
        await world.delay()
        if not there.up or world.is_parted(here.name, there.name) or world.rng.random() < 0.05:
            return  # lost
        if answer.done():
            world.met["late request"] += 1
        holder = there.holder
        found, then = holder.answer(work)
        world.saw(found)
        await world.delay()
        lost = not there.up or world.is_parted(here.name, there.name) or world.rng.random() < 0.05
        if not lost and not answer.done():
            answer.set_result(found)
        if then is not None:
            await asyncio.sleep(KEPT_S)
            if there.up and there.holder is holder:
                then()


class HonestHolder:
    """Writes first, then answers."""

    def __init__(self, holder):
        self._holder = holder

    def __getattr__(self, name):
        return getattr(self._holder, name)

    def answer(self, work):
        return work(self._holder), None


class DeletionWorld:
    """All nodes, the faults, and what must never be."""

    def __init__(self, seed, *, deleter=Deleter, holder=HonestHolder):
        self.rng = random.Random(seed)
        # Half of the worlds are about deaths between two steps, with copies few when the dead come back; the
        # others about nodes that delete between two steps of another.
        about = ((0.05, 60.0, 0.4, 30.0), (0.2, 15.0, 0.0, 90.0))[seed % 2]
        self.crash_share, self.crashed_s, self.interrupted_share, self.repaired_s = about
        self.kind_of_deleter, self.kind_of_holder = deleter, holder
        # Those have just as many nodes as there must be copies: each one that breaks its word is missed.
        self.copies_min = (2,) if self.interrupted_share else (1, 2)
        names = "abcde"[: 3 if self.interrupted_share else self.rng.randint(3, 5)]
        fleeting = names[-1] if len(names) == 5 and self.rng.random() < 0.5 else ""
        self.entries = [DataNode(name=name, ephemeral=name == fleeting) for name in names]
        self.nodes = {}
        for name in names:
            self.nodes[name] = SimNode(self, name)
        self.parted = set()
        self.met = Counter()
        self.violations = []
        self.began = {}  # node: (digest, copies_min, when it was begun) of the deletion in hand
        self.lost = {}  # (node, digest): when the world took or damaged it
        self.artifacts = []
        self._loose = set()

    # --- the observer ---------------------------------------------------------------------------------

    def deleted(self, node, digest):
        """The product deletes a file: are there enough others, or did the world take them just now?"""
        if not node.sound(digest):
            return  # what is damaged is no copy; it is set aside
        copies_min, since_s = self.began[node.name]
        self.met["deleted"] += 1
        others = [
            each
            for each in self.nodes.values()
            if each is not node and not each.entry.ephemeral and self._has_or_lost(each, digest, since_s)
        ]
        if len(others) < copies_min:
            left = [each.name for each in others]
            self.violations.append(f"{node.name} deleted {digest[:8]}: {left} left, {copies_min} must")

    def _has_or_lost(self, node, digest, since_s):
        return node.sound(digest) or self.lost.get((node.name, digest), -1.0) >= since_s

    def saw(self, answer):
        for file in getattr(answer, "files", ()) if not isinstance(getattr(answer, "files", 0), int) else ():
            if file.refusal == BEING_DELETED:
                self.met["refused: being deleted"] += 1

    # --- what happens ---------------------------------------------------------------------------------

    async def live(self, for_s):
        await self._make_files()
        for node in self.nodes.values():
            self._start(node)
        chaos = [self._crashes(), self._partitions(), self._disks(), self._clocks(), self._repairs()]
        tasks = [asyncio.ensure_future(each) for each in chaos]
        await asyncio.sleep(for_s)
        for task in [*tasks, *(node.task for node in self.nodes.values()), *self._loose]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _make_files(self):
        for number in range(FILES):
            content = f"games {number}".encode()
            digest = hashlib.sha256(content).hexdigest()
            self.artifacts.append((digest, content))
            for node in self.nodes.values():
                await self._give(node, digest, content)

    async def _give(self, node, digest, content):
        """The file comes to a node, and its manifest hears of all who have it."""
        node.disk.blobs.content[digest] = bytes(bytearray(content))  # another object: it was written anew
        plane = node.plane()
        now_s = node.runtime.now_s()
        card = Artifact(
            digest=digest, size=len(content), kind=ArtifactKind.GAMES, created_s=now_s - 30 * DAY_S
        )
        await plane.manifest.register([card])
        holders = [each.name for each in self.nodes.values() if each.sound(digest)]
        await plane.manifest.add_receipts(
            [Receipt(digest=digest, node=name, size=card.size, verified_s=now_s) for name in holders]
        )

    def _start(self, node):
        node.up = True
        node.task = asyncio.ensure_future(self._work(node))

    async def _work(self, node):
        """What the daemons of a node do: finish what a crash left, then free some room now and then."""
        plane = node.plane()
        finishing = True
        while True:
            node.hurries = node.now.is_set()
            node.now.clear()
            copies_min = 1 if node.hurries else self.rng.choice(self.copies_min)
            rules = DeletionRules(copies_min=copies_min, age_s_min=0.0)
            deleter = self.kind_of_deleter(plane, rules=rules)
            self.began[node.name] = (rules.copies_min, asyncio.get_running_loop().time())
            try:
                if finishing or self.rng.random() < 0.1:
                    for done in await deleter.finish():
                        self.met["finished" if done.verdict.allowed else "taken back"] += 1
                    finishing = False
                else:
                    digest = self.rng.choice(self.artifacts)[0]
                    card = await plane.manifest.artifact(digest)
                    if await plane.blobs.has(digest):
                        done = await deleter.delete(card, why="no room", by="test")
                        self.met["promised"] += "this node promised" in done.verdict.reason
            except RingRiftError:
                self.met["failed"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.expovariate(1 / 2.0)):
                    await node.now.wait()

    async def _crashes(self):
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self.crashed_s))
            node = self.rng.choice(list(self.nodes.values()))
            if not node.up:
                continue
            await self._kill(node)
            self.spawn(self._back(node))

    async def step(self, node):
        """A node wrote something down while it deletes: a good moment to die, or for others to act."""
        if node.task is not asyncio.current_task() or not node.holder.promises.begun():
            return
        if self.rng.random() < self.crash_share:
            node.up = False
            node.task.cancel()  # it ends where it waits next
            self.met["crash in the middle"] += 1
            self.spawn(self._back(node, self.rng.uniform(0.0, 4 * KEPT_S)))
        elif not node.hurries and self.rng.random() < self.interrupted_share:
            # One that could delete, too: one that is down or has nothing left would only let the time pass.
            others = [
                each for each in self.nodes.values() if each is not node and each.up and each.has_file()
            ]
            if others:
                self.met["interrupted"] += 1
                for each in others if self.rng.random() < 0.5 else [self.rng.choice(others)]:
                    each.now.set()
                await asyncio.sleep(INTERRUPTED_S)

    async def _kill(self, node):
        node.up = False
        node.task.cancel()
        with suppress(asyncio.CancelledError):
            await node.task

    async def _back(self, node, after_s=None):
        await asyncio.sleep(self.rng.uniform(0.0, 20.0) if after_s is None else after_s)
        self._start(node)

    async def _partitions(self):
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 60.0))
            pair = frozenset(self.rng.sample(sorted(self.nodes), 2))
            self.parted.add(pair)
            self.met["partition"] += 1
            await asyncio.sleep(self.rng.expovariate(1 / 40.0))
            self.parted.discard(pair)

    async def _disks(self):
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 120.0))
            node, now_s = self.rng.choice(list(self.nodes.values())), asyncio.get_running_loop().time()
            if node.up and self.rng.random() < 0.3:
                self.met["wiped"] += 1
                self.lost |= {(node.name, digest): now_s for digest in node.disk.blobs.content}
                await self._kill(node)
                node.new_disk()
                self.spawn(self._back(node))
            elif node.disk.blobs.content:
                digest = self.rng.choice(sorted(node.disk.blobs.content))
                self.met["damaged"] += 1
                self.lost[node.name, digest] = now_s
                node.disk.blobs.content[digest] = b"x" * len(node.disk.blobs.content[digest])

    async def _clocks(self):
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 300.0))
            node = self.rng.choice(list(self.nodes.values()))
            node.runtime.wall_offset_s += self.rng.uniform(-1, 1) * DAY_S

    async def _repairs(self):
        """Now and then files come back to where they are missing, to all at once: then all delete again.

        In between there is time for copies to become few.
        """
        while True:
            for digest, content in self.artifacts:
                for node in self.nodes.values():
                    if node.up and not node.sound(digest):
                        await self._give(node, digest, content)
                for node in self.nodes.values():  # and all hear of it
                    if node.up:
                        await self._hear(node, digest, len(content))
            await asyncio.sleep(self.rng.expovariate(1 / self.repaired_s))

    async def _hear(self, node, digest, size):
        now_s = node.runtime.now_s()
        await node.plane().manifest.add_receipts(
            [
                Receipt(digest=digest, node=each.name, size=size, verified_s=now_s)
                for each in self.nodes.values()
                if each.sound(digest)
            ]
        )

    # --- the network ----------------------------------------------------------------------------------

    def is_parted(self, one, other):
        return frozenset((one, other)) in self.parted

    async def delay(self):
        slow = self.rng.random() < 0.1
        await asyncio.sleep(self.rng.expovariate(1 / 8.0) if slow else self.rng.uniform(0.0, 2.0))

    def spawn(self, work):
        task = asyncio.ensure_future(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)


class HolderThatPromisesLater:
    """Planted: answers first, and writes the promise down when the answer is on its way."""

    def __init__(self, holder):
        self._holder, self._silent = holder, None

    def __getattr__(self, name):
        return getattr(self._holder, name)

    def answer(self, work):
        store, kept = self._holder.promises, []
        real = store.promise

        def later(digest, **given):
            refusal = BEING_DELETED if digest in store.begun() else ""
            if not refusal:
                kept.append((digest, given))
            return refusal

        store.promise = later
        try:
            found = work(self._holder)
        finally:
            store.promise = real
        return found, lambda: [real(digest, **given | {"keep_s": 1.0}) for digest, given in kept]


def holder_with(**planted):
    """Planted: a holder whose store of promises has some other methods."""

    def make(holder: Holder):
        for name, method in planted.items():
            setattr(holder.promises, name, method(holder.promises))
        return HonestHolder(holder)

    return make
