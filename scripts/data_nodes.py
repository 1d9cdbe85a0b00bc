"""Three to five real nodes under faults: no file falls below its minimum of copies by our own doing.

    python scripts/data_nodes.py --seconds 600 --seed 1 [--nodes 5]

Each node is a process with the daemons that delete and repair, at short intervals, and a data server in a
process of its own; each has an engine and a disk of its own, and reaches the others over lines that are slow
and break. Disks fill and empty, processes are killed and stopped, files damaged, lines cut, nodes cut off and
wiped (files, record of promises and database are gone; the node comes back empty under its name), at random.
An observer reads the disks all the time and knows nothing of what the nodes believe. At the end, and in
between, `ringrift data replicas` is compared with what is on the disks.

A copy that a fault took counts for a deletion only if that node had promised the deleter to keep it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from click.testing import CliRunner

from faulty_line import FaultyLine
from ringrift.cli.main import app
from ringrift.coordination.sync_base import close_data_plane, open_data_plane
from ringrift.daemons import child_main
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode
from ringrift.data.plane import DataPlane, Holders
from ringrift.data.protection import promises
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.integrity import IntegrityCheckDaemon, OrphanDetectionDaemon
from ringrift.data.protection.promise_store import BEING_DELETED, DATABASE, PromiseStore
from ringrift.data.protection.promises import KeepAnswer, KeepRequest, KeptFile, Released, ReleaseRequest
from ringrift.data.protection.replication import ReplicationRepairDaemon, ReplicationRules
from ringrift.data.transfer import peers
from ringrift.engine.opening import close_engine
from ringrift.errors import RingRiftError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.breakers import BreakerConfig
from ringrift.process import process_scope
from ringrift.resources.disk import DiskSpaceManagerDaemon
from ringrift.runtime import system_runtime

CLOCK = system_runtime()
NAMES = "abcde"
COPIES_MIN = 2
SECRET = "nodes of a test, one secret"
DAY_S = 86_400.0
FILES_MAX, FILES_FIRST = 60, 4
FILES_MIXED = 2  # of each node; then several want to delete the same one
EXCUSED_S = 60.0  # a promise given before a fault is used up, or forgotten, by then
LOOKED_S = 5.0  # a file damaged so lately may have been looked at before
SETTLED_S = 300.0
STABLE_S = 2.0
FIRST_S = 300.0  # until something was deleted: a node that answers late is not asked again for a minute
FULL = 77.0  # percent: from 70 on what others have goes
FAULTS = {
    "fill": 8,
    "kill": 2,
    "kill server": 2,
    "stop": 2,
    "cut": 2,
    "cut off": 1,
    "damage": 1,
    "wipe": 2,
}
FAULTS_AT_ONCE = 2
DELAYS_S = (0.0, 0.0, 0.02, 0.4)  # of a message on a line
LATER_S = 2.0
ALIVE_S = 300.0  # for a process to start
ENOUGH = "enough"  # a file that tells all nodes to make no more
BREAK_S = 3.0  # instead of minutes, after a node could not be reached
DISK = '''"""The disk is as full as the file NODE_DISK says, in percent."""
import os
from pathlib import Path
_statvfs = os.statvfs
def _told(path):
    fields = list(_statvfs(path))
    fields[3] = fields[4] = int(fields[2] * (1 - float(Path(os.environ["NODE_DISK"]).read_text()) / 100))
    return os.statvfs_result(fields)
if "NODE_DISK" in os.environ:
    os.statvfs = _told
'''


# --- a node -----------------------------------------------------------------------------------------------


class BelievedReceipts:
    """A planted bug: who is asked for a promise is not asked, but believed to have what its receipts say."""

    def __init__(self, plane: DataPlane, asked: Holders) -> None:
        self._plane, self._asked = plane, asked

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer:
        if not request.keep_s:
            return await self._asked.keep(node, request)
        view = await self._plane.view()
        files = tuple(
            KeptFile(digest=file.digest, size=file.size)
            for file in request.files
            if node.name in view.holders(file.digest)
        )
        return KeepAnswer(node=node.name, store=node.name, keep_s=request.keep_s, files=files)

    async def release(self, node: DataNode, request: ReleaseRequest) -> Released:  # noqa: ARG002
        return Released(files=0)

    async def close(self) -> None:
        await self._asked.close()


class SlowToAct:
    """No bug: between the answers and what is done because of them there is time for others to act."""

    def __init__(self, asked: Holders, rng: random.Random) -> None:
        self._asked, self._rng = asked, rng
        self.release, self.close = asked.release, asked.close

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer:
        answer = await self._asked.keep(node, request)
        if request.keep_s:
            await CLOCK.sleep(self._rng.uniform(0.0, 1.5))
        return answer


class PromisesLater(PromiseStore):
    """A planted bug: the data server answers first, and writes the promise down when that is on its way.

    So late, and for so short a time, that nobody is held to it.
    """

    def promise(self, digest: str, *, asker: str, promise: str, keep_s: float) -> str:
        if digest in self.begun():
            return BEING_DELETED
        later_s, write = min(keep_s, LATER_S), super().promise
        threading.Timer(
            later_s, lambda: write(digest, asker=asker, promise=promise, keep_s=later_s / 4)
        ).start()
        return ""


BELIEVES, LATER = "believes-receipts", "promises-later"
BUGS = (BELIEVES, LATER)


def serve(beat_fd: str, bug: str) -> int:
    if bug == LATER:
        vars(promises)["PromiseStore"] = PromisesLater
    return child_main.main([beat_fd, "ringrift.data.transfer.http.server:create_data_server"])


async def live_as_node(seed: int, bug: str) -> None:
    """Make files, and run what repairs, deletes and looks, woken every second or so."""
    plane, runtime, rng = await open_data_plane(), system_runtime(), random.Random(seed)
    if bug == BELIEVES:
        vars(plane)["_holders"] = BelievedReceipts(plane, plane.holders)
    vars(peers)["NODE_LIMIT"] = peers.TRANSPORT_LIMITS["http"] = BreakerConfig(cooldown_s=BREAK_S)
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    rules = ReplicationRules(cooldown_s=1.0, repair_timeout_s=20.0, repairs_per_hour=1_000_000)
    daemons = [
        DiskSpaceManagerDaemon(plane=plane, router=router, runtime=runtime),
        ReplicationRepairDaemon(plane=plane, router=router, runtime=runtime, rules=rules, interval_s=3.0),
        IntegrityCheckDaemon(plane=plane, router=router, runtime=runtime),
        OrphanDetectionDaemon(plane=plane, router=router, runtime=runtime),
    ]
    for daemon in daemons:
        await daemon.start()
    collecting = asyncio.ensure_future(collect(plane, rng)) if "NODE_COPIES_MIN" in os.environ else None
    if os.environ.get("NODE_COPIES_MIN") == str(COPIES_MIN):
        vars(plane)["_holders"] = SlowToAct(plane.holders, rng)
    try:
        for turn in range(sys.maxsize):
            for daemon in daemons:
                daemon.wake()
            if not turn:
                await asyncio.to_thread(Path(os.environ["NODE_READY"]).touch)
            if rng.random() < 0.5:
                await make_files(plane, rng, 1 if turn else FILES_FIRST)
            await CLOCK.sleep(rng.uniform(0.3, 1.5))
    finally:
        if collecting is not None:
            collecting.cancel()
        for daemon in daemons:
            await daemon.stop()
        await router.stop()
        await close_data_plane()
        await close_engine()


async def make_files(plane: DataPlane, rng: random.Random, number: int) -> None:
    """Unless there are enough, or a file says that there are."""
    enough = [Path(os.environ[name]) for name in ("NODE_QUIET", "NODE_ENOUGH")]
    files_max = FILES_MAX if "NODE_COPIES_MIN" not in os.environ else FILES_MIXED
    for _ in range(number):
        if len((await plane.view()).artifacts) < files_max and not any(map(Path.exists, enough)):
            await make_file(plane, rng)


async def make_file(plane: DataPlane, rng: random.Random) -> None:
    content, name = rng.randbytes(rng.randint(1, 20_000)), plane.this.name
    digest, now_s = await plane.blobs.put_bytes(content), plane.runtime.now_s()
    made_s = now_s - 30 * DAY_S  # old enough to go
    card = Artifact(digest=digest, size=len(content), kind=ArtifactKind.GAMES, created_s=made_s, node=name)
    await plane.manifest.register([card])
    receipt = Receipt(digest=digest, node=name, size=len(content), verified_s=now_s)
    await plane.manifest.add_receipts([receipt])


async def collect(plane: DataPlane, rng: random.Random) -> None:
    """As a person who calls `ringrift data gc --min-copies N` all the time."""
    rules = DeletionRules(copies_min=int(os.environ["NODE_COPIES_MIN"]), age_s_min=0.0)
    while True:
        await CLOCK.sleep(rng.uniform(0.0, 0.5))
        view = await plane.view()
        own = sorted(view.receipts_at(plane.this.name))
        if own and not await asyncio.to_thread(Path(os.environ["NODE_QUIET"]).exists):
            with suppress(RingRiftError):
                card = await plane.manifest.artifact(rng.choice(own))
                if card is not None:
                    await Deleter(plane, rules=rules).delete(card, why="gc", by="gc")


class Node:
    """Its folder and its two processes, as the driver sees them."""

    def __init__(self, root: Path, name: str, seed: int, bug: str, copies_min: int | None) -> None:
        self.root, self.name, self.folder, self._seed, self._bug = root, name, root / name, seed, bug
        self.copies_min, self._gc = copies_min or COPIES_MIN, copies_min is not None
        self._held = socket.socket()  # bound, not listened on: nobody else is given the port
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])
        self.lines: dict[str, FaultyLine] = {}
        self.disk, self.quiet = root / f"{name}.percent", root / f"{name}.quiet"
        self._ready = root / f"{name}.ready"
        self.folder.mkdir()
        self.fill(FULL)
        self.process: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None

    def fill(self, percent: float) -> None:
        making = self.disk.with_suffix(".making")
        making.write_text(str(percent))
        making.replace(self.disk)

    def environment(self) -> dict[str, str]:
        entries = {self.name: {"ssh_host": "127.0.0.1", "data_port": self.port}}
        entries |= {
            name: {"ssh_host": "127.0.0.1", "data_port": line.port} for name, line in self.lines.items()
        }
        paths = [str(self.root / "site"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            **({"NODE_COPIES_MIN": str(self.copies_min)} if self._gc else {}),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "NODE_DISK": str(self.disk),
            "NODE_QUIET": str(self.quiet),
            "NODE_ENOUGH": str(self.root / ENOUGH),
            "NODE_READY": str(self._ready),
            "RINGRIFT_DATA_DIR": str(self.folder),
            "RINGRIFT_NODE_ID": self.name,
            "RINGRIFT_NODES": json.dumps(entries),
            "RINGRIFT_DATA_SECRET": SECRET,
            "RINGRIFT_DATA_PORT": str(self.port),
            "RINGRIFT_HEALTH_PORT": "0",
            "NO_COLOR": "1",
        }

    def start_process(self) -> None:
        self._seed += 1
        self._ready.unlink(missing_ok=True)
        self.process = self._started("node", "--node", "--seed", str(self._seed))

    def start_server(self) -> None:
        reading, writing = os.pipe()
        self.server = self._started("server", "--server", str(writing), fds=(writing,))
        os.close(writing)
        threading.Thread(target=_drain, args=(reading,), daemon=True).start()

    def _started(self, what: str, *words: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).resolve()), *words]
        command += ["--bug", self._bug] if self._bug else []
        with (self.root / f"{self.name}.{what}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
            )

    async def alive(self) -> None:
        """Wait until both processes are at work, however slow the machine is."""
        end_s = CLOCK.monotonic_s() + ALIVE_S
        while CLOCK.monotonic_s() < end_s:
            self.check_processes()
            if self._ready.exists():
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
            await CLOCK.sleep(0.1)
        raise AssertionError(f"node {self.name} does not start; see its logs in {self.root}")

    def check_processes(self) -> None:
        """Raise if one ended that nobody killed: such a node deletes nothing, so nothing would be shown."""
        for what, process in (("node", self.process), ("server", self.server)):
            if process is not None and (code := process.poll()) is not None:
                log = (self.root / f"{self.name}.{what}.log").read_text(errors="replace")
                raise AssertionError(f"the {what} process of {self.name} ended with {code}: {log[-2000:]}")

    def kill(self) -> None:
        for process in (self.process, self.server):
            if process is not None:
                process.kill()
                process.wait(60)

    def blobs(self) -> set[str]:
        found = set()
        with suppress(FileNotFoundError):
            for folder in os.scandir(self.folder / "blobs"):
                if len(folder.name) == 2:
                    with suppress(FileNotFoundError):
                        found |= {each.name for each in os.scandir(folder)}
        return found

    def sound(self, digest: str) -> bool:
        try:
            content = (self.folder / "blobs" / digest[:2] / digest).read_bytes()
        except FileNotFoundError:
            return False
        return hashlib.sha256(content).hexdigest() == digest

    def inode(self, digest: str) -> int:
        """0: it does not have the file."""
        try:
            return (self.folder / "blobs" / digest[:2] / digest).stat().st_ino
        except FileNotFoundError:
            return 0

    def promised(self) -> set[tuple[str, str]]:
        """What it has promised to whom: digests and names."""
        path = self.folder / "blobs" / DATABASE
        if not path.exists():
            return set()
        with closing(sqlite3.connect(path, timeout=20.0)) as db:
            try:
                return set(db.execute("SELECT digest, asker FROM promises"))
            except sqlite3.OperationalError:  # it was just made
                return set()


def ask(nodes: Iterable[Node]) -> dict[str, dict[str, Any]]:
    """What `ringrift data replicas` and `ls` say on each node; one process asks, which is faster."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--ask"],
        input=json.dumps({node.name: node.environment() for node in nodes}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"nobody said what the nodes have ({done.returncode}): {done.stderr}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def answer(environments: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """The other side of `ask`."""
    found: dict[str, dict[str, Any]] = {}
    for name, environment in environments.items():
        for words in (("replicas",), ("ls", "--limit", "100000")):
            process_scope().clear()  # as another process
            done = CliRunner().invoke(app, ["data", *words, "--json"], env=environment)
            if done.exit_code:
                raise AssertionError(f"`ringrift data {' '.join(words)}` on {name}: {done.stderr}")
            found.setdefault(name, {})[words[0]] = json.loads(done.stdout)
    return found


def _drain(reading: int) -> None:
    while os.read(reading, 1024):
        pass
    os.close(reading)


# --- the observer -----------------------------------------------------------------------------------------


class Observer(threading.Thread):
    """Reads the disks, and judges every file that goes without a fault of the driver's."""

    def __init__(self, nodes: dict[str, Node], enough: Path) -> None:
        super().__init__(daemon=True)
        self._enough = enough
        self._nodes, self._over = nodes, threading.Event()
        self.lock = threading.RLock()  # held by the driver while it takes files
        self.met: Counter[str] = Counter()
        self.violations: list[str] = []
        self.seen: dict[str, set[str]] = {}  # where each file was, ever
        self._before: dict[str, set[str]] = {name: set() for name in nodes}
        self._taken: dict[tuple[str, str, str], float] = {}  # node, digest, to whom it was promised
        self._damaged: dict[tuple[str, str], tuple[float, int]] = {}  # when, and which file it was

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.look()

    def finish(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()

    def wiped(self, name: str, promised: set[tuple[str, str]]) -> None:
        """The driver takes all files of a node that had given these promises; called with the lock."""
        now_s = CLOCK.monotonic_s()
        self._taken |= {(name, digest, asker): now_s for digest, asker in promised}
        self._before[name] = set()

    def damaged(self, name: str, digest: str, promised: set[tuple[str, str]]) -> None:
        """The driver damages this one; called with the lock."""
        now_s = CLOCK.monotonic_s()
        self._damaged[name, digest] = now_s, self._nodes[name].inode(digest)
        self._taken |= {(name, file, asker): now_s for file, asker in promised if file == digest}

    def look(self) -> None:
        with self.lock:
            now = {name: node.blobs() for name, node in self._nodes.items()}
            for (name, digest), (_, inode) in list(self._damaged.items()):
                if digest in now[name] and self._nodes[name].inode(digest) not in (0, inode):
                    del self._damaged[name, digest]  # it was set aside and brought back since the last look
            for name, held in now.items():
                for digest in held - self._before[name]:
                    places = self.seen.setdefault(digest, set())
                    self.met["copied"] += bool(places)
                    places.add(name)
                for digest in self._before[name] - held:
                    self._judge(name, digest)
            self._before = now
            if len(self.seen) >= FILES_MAX:
                self._enough.touch()

    def _judge(self, name: str, digest: str) -> None:
        if self._damaged.pop((name, digest), None) is not None:
            return  # it was set aside
        self.met["deleted"] += 1
        others = [
            other
            for other, node in self._nodes.items()
            if other != name and (node.sound(digest) or self._was_promised(other, digest, name))
        ]
        if len(others) < self._nodes[name].copies_min:
            self.violations.append(f"{name} deleted {digest[:12]}, which only {others} have")

    def _was_promised(self, other: str, digest: str, asker: str) -> bool:
        """Whether a fault took what *other* had promised *asker* to keep. A promise is used once."""
        now_s, never_s = CLOCK.monotonic_s(), float("-inf")
        damaged_s, _ = self._damaged.get((other, digest), (never_s, 0))
        if now_s - damaged_s < LOOKED_S:
            return True
        return now_s - self._taken.pop((other, digest, asker), never_s) < EXCUSED_S


# --- the faults -------------------------------------------------------------------------------------------


class Driver:
    """Makes things go wrong, and looks whether the nodes know what is on their disks."""

    def __init__(self, root: Path, seed: int, *, number: int, bug: str, mixed: bool) -> None:
        self.rng, self.root, names = random.Random(seed), root, NAMES[:number]
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(DISK)
        self.nodes = {
            name: Node(root, name, seed * 1000 + 100 * i, bug, (COPIES_MIN - (i == 0)) if mixed else None)
            for i, name in enumerate(names)
        }
        self.observer = Observer(self.nodes, root / ENOUGH)
        self.met: Counter[str] = Counter()
        self.compared: list[dict[str, object]] = []
        self._wiped = False
        self._faulty: set[str] = set()  # nodes that a fault is at

    async def live(self, seconds: float, *, catch: bool) -> None:
        async with AsyncExitStack() as lines:
            await self._start(lines)
            try:
                await (self._catch(seconds) if catch else self._run(seconds))
            finally:
                for node in self.nodes.values():
                    node.kill()
        await CLOCK.sleep(0.5)  # for the connections

    async def _run(self, seconds: float) -> None:
        await self._first_deletion()
        begun_s = CLOCK.monotonic_s()
        stretches = [seconds / 2] * 2 if seconds >= 120 else [seconds]
        for number, _ in enumerate(stretches, 1):
            await self._faults(begun_s + seconds * number / len(stretches))
            await self._compare()

    async def _delay(self) -> None:
        await CLOCK.sleep(self.rng.choice(DELAYS_S))

    async def _start(self, lines: AsyncExitStack) -> None:
        for node in self.nodes.values():
            node.lines = {
                name: await lines.enter_async_context(FaultyLine(other.port, before_each=self._delay))
                for name, other in self.nodes.items()
                if other is not node
            }
        for node in self.nodes.values():
            node.start_server()
            node.start_process()
        self.observer.start()
        for node in self.nodes.values():
            await node.alive()

    async def _first_deletion(self) -> None:
        """Wait for files, copies of them, and a node that deletes one."""
        end_s = CLOCK.monotonic_s() + FIRST_S
        while not self.observer.met["deleted"] and CLOCK.monotonic_s() < end_s:
            self._check_processes()
            await CLOCK.sleep(0.1)

    def _check_processes(self) -> None:
        for node in self.nodes.values():
            node.check_processes()

    async def _catch(self, seconds: float) -> None:
        """Without faults, until the observer sees a violation."""
        end_s = CLOCK.monotonic_s() + seconds
        while not self.observer.violations and CLOCK.monotonic_s() < end_s:
            await CLOCK.sleep(0.1)

    async def _faults(self, end_s: float) -> None:
        """Faults at random, some at the same time, each at another node; all are over at the end."""
        places = asyncio.Semaphore(FAULTS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while CLOCK.monotonic_s() < end_s:
                await places.acquire()
                group.create_task(self._fault()).add_done_callback(lambda _: places.release())
                await CLOCK.sleep(self.rng.uniform(0.1, 1.0))

    async def _fault(self) -> None:
        node = self.nodes[self.rng.choice(sorted(self.nodes.keys() - self._faulty))]
        # The worst one first, so that a short run has it.
        kind = self.rng.choices(list(FAULTS), list(FAULTS.values()))[0] if self._wiped else "wipe"
        self._wiped = True
        self._faulty.add(node.name)
        try:
            if await getattr(self, "_" + kind.replace(" ", "_"))(node) is not False:
                self.met[kind] += 1
        finally:
            self._faulty.discard(node.name)

    async def _fill(self, node: Node) -> None:
        node.fill(self.rng.choice((40, 60, 77, 77, 77, 90, 96)))

    async def _kill(self, node: Node) -> None:
        assert node.process is not None
        node.process.kill()
        await asyncio.to_thread(node.process.wait)
        await CLOCK.sleep(self.rng.uniform(0.0, 3.0))
        node.start_process()
        await node.alive()

    async def _kill_server(self, node: Node) -> None:
        assert node.server is not None
        node.server.kill()
        await asyncio.to_thread(node.server.wait)
        await CLOCK.sleep(self.rng.uniform(0.0, 3.0))
        node.start_server()
        await node.alive()

    async def _stop(self, node: Node) -> None:
        process = self.rng.choice((node.process, node.server))
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await CLOCK.sleep(self.rng.uniform(0.5, 6.0))
        process.send_signal(signal.SIGCONT)

    async def _cut(self, node: Node) -> None:
        other = self.rng.choice([each for each in self.nodes.values() if each is not node])
        lines = [node.lines[other.name], other.lines[node.name]]
        await self._cut_lines(lines[: self.rng.randint(1, 2)])

    async def _cut_off(self, node: Node) -> None:
        to_it = [each.lines[node.name] for each in self.nodes.values() if each is not node]
        await self._cut_lines([*node.lines.values(), *to_it])

    async def _cut_lines(self, lines: list[FaultyLine]) -> None:
        for line in lines:
            line.cut = True
            line.abort()
        await CLOCK.sleep(self.rng.uniform(0.5, 6.0))
        for line in lines:
            line.cut = False

    async def _damage(self, node: Node) -> bool:
        with self.observer.lock:
            self.observer.look()
            held = [
                digest for digest in sorted(node.blobs()) if len(self._others(node, digest)) >= COPIES_MIN
            ]
            if not held:
                return False
            digest = self.rng.choice(held)
            path, promised = node.folder / "blobs" / digest[:2] / digest, node.promised()
            try:
                size = path.stat().st_size
                path.chmod(0o600)
                path.write_bytes(b"\0" * size)
            except FileNotFoundError:
                return False
            self.observer.damaged(node.name, digest, promised | node.promised())
            return True

    async def _wipe(self, node: Node) -> bool:
        """All that the node has is gone. Files that others had too must not be lost: they need a copy."""
        node.quiet.touch()
        end_s = CLOCK.monotonic_s() + 10.0
        while self._alone(node) and CLOCK.monotonic_s() < end_s:
            await CLOCK.sleep(0.2)
        with self.observer.lock:
            node.kill()
            # What is released before here was deleted before here, and is judged with the files in place.
            self.observer.look()
            wipes = not self._alone(node)
            if wipes:
                self.observer.wiped(node.name, node.promised())
                shutil.rmtree(node.folder)
                node.folder.mkdir()
        await CLOCK.sleep(self.rng.uniform(0.0, 4.0))
        node.quiet.unlink()
        node.start_server()
        node.start_process()
        await node.alive()
        return wipes

    def _others(self, node: Node, digest: str) -> list[str]:
        return [each.name for each in self.nodes.values() if each is not node and each.sound(digest)]

    def _alone(self, node: Node) -> list[str]:
        """What only this node has now, though others had it, too."""
        shared = (digest for digest in node.blobs() if len(self.observer.seen.get(digest, ())) > 1)
        return [digest for digest in shared if not self._others(node, digest)]

    # --- what the nodes say against what is there -----------------------------------------------------

    async def _compare(self) -> None:
        """Let the nodes rest on disks with room; then each must say what is on the disks."""
        self._check_processes()
        for node in self.nodes.values():
            node.quiet.touch()
            node.fill(40)
        end_s = CLOCK.monotonic_s() + SETTLED_S
        await self._stable(end_s)
        left = dict(self.nodes)
        while left:
            before = self._copies()
            said = await asyncio.to_thread(ask, left.values())
            if self._copies() == before:
                left = {name: left[name] for name in left if not self._agrees(left[name], said[name], before)}
            if left and CLOCK.monotonic_s() > end_s:
                raise AssertionError(
                    f"{ {name: said[name]['replicas'] for name in left} }, the disks {before}"
                )
        for node in self.nodes.values():
            node.quiet.unlink()

    async def _stable(self, end_s: float) -> None:
        """Wait until repair has nothing to do."""
        before, since_s = self._copies(), CLOCK.monotonic_s()
        while CLOCK.monotonic_s() < min(since_s + STABLE_S, end_s):
            await CLOCK.sleep(0.2)
            if (now := self._copies()) != before:
                before, since_s = now, CLOCK.monotonic_s()

    def _agrees(self, node: Node, said: dict[str, Any], copies: dict[str, set[str]]) -> bool:
        digests = {row["digest"] for row in said["ls"]}
        counted = Counter(len(copies.get(digest, ())) for digest in digests)
        independent = {str(number): files for number, files in sorted(counted.items())}
        shared = {digest for digest, places in copies.items() if node.name in places and len(places) > 1}
        replicas = said["replicas"]
        agrees = replicas["by_copies"] == independent and not replicas["unknown"] and shared <= digests
        if agrees:
            self.compared.append({"node": node.name, "files": len(digests), "by_copies": independent})
        return agrees

    def _copies(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, node in self.nodes.items():
            for digest in node.blobs():
                if node.sound(digest):
                    found.setdefault(digest, set()).add(name)
        return found

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.observer.finish()

    def report(self) -> dict[str, object]:
        now, seen = self._copies(), self.observer.seen
        return {
            "nodes": len(self.nodes),
            "files": len(seen),
            "copied": self.observer.met["copied"],
            "deleted": self.observer.met["deleted"],
            "faults": dict(sorted(self.met.items())),
            "compared": self.compared,
            "lost": sorted(
                digest for digest, places in seen.items() if len(places) > 1 and digest not in now
            ),
            "violations": self.observer.violations,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, choices=(3, 4, 5), help="by the seed if not given")
    parser.add_argument("--mixed", action="store_true", help="a is content with one copy, and all run gc")
    parser.add_argument("--keep", action="store_true", help="leave the folders for a look")
    parser.add_argument("--bug", choices=BUGS, default="", help="plant this one; it must be caught")
    parser.add_argument("--node", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        return serve(options.server, options.bug)
    if options.ask:
        sys.stdout.write(json.dumps(answer(json.loads(sys.stdin.read()))))
        return 0
    if options.node:
        child_main.die_with_parent(os.getppid())
        asyncio.run(live_as_node(options.seed, options.bug))
        return 0
    root = Path(tempfile.mkdtemp(prefix="data-nodes-"))
    number = options.nodes or random.Random(options.seed).randint(3, 5)
    mixed = options.mixed or options.bug == LATER  # with one rule the order of the steps is enough
    driver = Driver(root, options.seed, number=number, bug=options.bug, mixed=mixed)
    try:
        asyncio.run(driver.live(options.seconds, catch=bool(options.bug)))
    finally:
        driver.close()
        report = driver.report()
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if not report["deleted"]:
        sys.stderr.write("nothing was deleted, so nothing was shown\n")
        return 1
    if options.bug and not report["violations"]:
        sys.stderr.write(f"the bug {options.bug!r} was not caught\n")
    found = bool(report["violations"] or report["lost"])
    return 1 if found != bool(options.bug) else 0


if __name__ == "__main__":
    sys.exit(main())
