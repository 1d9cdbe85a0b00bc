"""Three real nodes under faults: no file falls below its minimum of copies by our own doing.

    python scripts/three_nodes.py --seconds 600 --seed 1

Each node is a process with the daemons that delete and repair, at short intervals, and a data server in a
process of its own; each has an engine and a disk of its own, and reaches the others over lines that break.
Disks fill and empty, processes are killed and stopped, disks are wiped, files damaged, lines cut, at random.
An observer reads the three disks all the time and knows nothing of what the nodes believe. At the end, and in
between, `ringrift data replicas` is compared with what is on the disks.
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
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.integrity import IntegrityCheckDaemon, OrphanDetectionDaemon
from ringrift.data.nodes import DataNode
from ringrift.data.plane import DataPlane, Holders, close_data_plane, open_data_plane
from ringrift.data.promises import KeepAnswer, KeepRequest, KeptFile, Released, ReleaseRequest
from ringrift.data.replication import ReplicationRepairDaemon, ReplicationRules
from ringrift.engine.opening import close_engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.resources.disk import DiskSpaceManagerDaemon
from ringrift.runtime import system_runtime

CLOCK = system_runtime()
NAMES = ("a", "b", "c")
COPIES_MIN = 2
SECRET = "three nodes of a test, one secret"
DAY_S = 86_400.0
FILES_MAX = 150
EXCUSED_S = 30.0  # a copy that a fault took so shortly before a deletion may have been promised
SETTLED_S = 120.0
FIRST_S = 120.0  # until something was deleted, on a slow machine
FULL = 77.0  # percent: from 70 on what others have goes
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


BUGS = {"believes-receipts": BelievedReceipts}


async def live_as_node(seed: int, bug: str) -> None:
    """Make files, and run what repairs, deletes and looks, woken every second or so."""
    plane, runtime, rng = await open_data_plane(), system_runtime(), random.Random(seed)
    if bug:
        vars(plane)["_holders"] = BUGS[bug](plane, plane.holders)
    quiet = Path(os.environ["NODE_QUIET"])  # while it is there nothing new is made
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    rules = ReplicationRules(cooldown_s=3.0, repair_timeout_s=20.0)
    daemons = [
        DiskSpaceManagerDaemon(plane=plane, router=router, runtime=runtime),
        ReplicationRepairDaemon(plane=plane, router=router, runtime=runtime, rules=rules, interval_s=3.0),
        IntegrityCheckDaemon(plane=plane, router=router, runtime=runtime),
        OrphanDetectionDaemon(plane=plane, router=router, runtime=runtime),
    ]
    for daemon in daemons:
        await daemon.start()
    try:
        while True:
            await CLOCK.sleep(rng.uniform(0.5, 2.0))
            for daemon in daemons:
                daemon.wake()
            busy = not await asyncio.to_thread(quiet.exists)
            if busy and len((await plane.view()).artifacts) < FILES_MAX and rng.random() < 0.5:
                content = rng.randbytes(rng.randint(1, 20_000))
                digest, now_s = await plane.blobs.put_bytes(content), runtime.now_s()
                made_s = now_s - 30 * DAY_S  # old enough to go
                card = Artifact(
                    digest=digest,
                    size=len(content),
                    kind=ArtifactKind.GAMES,
                    created_s=made_s,
                    node=plane.this.name,
                )
                await plane.manifest.register([card])
                receipt = Receipt(digest=digest, node=plane.this.name, size=len(content), verified_s=now_s)
                await plane.manifest.add_receipts([receipt])
    finally:
        for daemon in daemons:
            await daemon.stop()
        await router.stop()
        await close_data_plane()
        await close_engine()


class Node:
    """Its folder and its two processes, as the driver sees them."""

    def __init__(self, root: Path, name: str, seed: int, bug: str) -> None:
        self.root, self.name, self.folder, self._seed, self._bug = root, name, root / name, seed, bug
        self.port = _free_port()
        self.lines: dict[str, Line] = {}
        self.disk = root / f"{name}.percent"
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
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "NODE_DISK": str(self.disk),
            "NODE_QUIET": str(self.root / "quiet"),
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
        words = [sys.executable, str(Path(__file__).resolve()), "--node", "--seed", str(self._seed)]
        words += ["--bug", self._bug] if self._bug else []
        self.process = self._started(words, "node")

    def start_server(self) -> None:
        reading, writing = os.pipe()
        entry = "ringrift.data.server:create_data_server"
        words = [sys.executable, "-m", "ringrift.daemons.child_main", str(writing), entry]
        self.server = self._started(words, "server", writing)
        os.close(writing)
        threading.Thread(target=_drain, args=(reading,), daemon=True).start()

    def _started(self, words: list[str], what: str, *fds: int) -> subprocess.Popen[bytes]:
        with (self.root / f"{self.name}.{what}.log").open("ab") as log:
            return subprocess.Popen(
                words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds
            )

    def kill(self) -> None:
        for process in (self.process, self.server):
            if process is not None:
                process.kill()
                process.wait(60)

    def blobs(self) -> set[str]:
        found = set()
        for folder in (self.folder / "blobs").glob("[0-9a-f][0-9a-f]"):
            with suppress(FileNotFoundError):
                found |= {each.name for each in os.scandir(folder)}
        return found

    def sound(self, digest: str) -> bool:
        try:
            content = (self.folder / "blobs" / digest[:2] / digest).read_bytes()
        except FileNotFoundError:
            return False
        return hashlib.sha256(content).hexdigest() == digest

    def ask(self, *words: str) -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "ringrift.cli", "data", *words, "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"`ringrift data {' '.join(words)}` on {self.name}: {done.stderr}")
        answer: dict[str, object] = json.loads(done.stdout)
        return answer


class Line:
    """A line from one node to the data server of another, which can be cut."""

    def __init__(self, port: int) -> None:
        self.port, self._target, self.cut = 0, port, False
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> Line:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def break_off(self) -> None:
        self.cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        other = None
        try:
            if self.cut:
                return
            far, other = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(other)
            await asyncio.gather(_pump(reader, other), _pump(far, writer))
        except OSError:
            pass
        finally:
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _drain(reading: int) -> None:
    while os.read(reading, 1024):
        pass
    os.close(reading)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


# --- the observer -----------------------------------------------------------------------------------------


class Observer(threading.Thread):
    """Reads the disks, and judges every file that goes without a fault of the driver's."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        super().__init__(daemon=True)
        self._nodes, self._over = nodes, threading.Event()
        self.lock = threading.Lock()  # held by the driver while it takes files
        self.lost: dict[tuple[str, str], float] = {}
        self.met: Counter[str] = Counter()
        self.violations: list[str] = []
        self.seen: set[str] = set()
        self._before: dict[str, set[str]] = {name: set() for name in nodes}

    def run(self) -> None:
        while not self._over.wait(0.05):
            with self.lock:
                self.look()

    def finish(self) -> None:
        self._over.set()
        self.join()

    def took(self, name: str, digests: set[str]) -> None:
        """The driver took or damaged these; called with the lock."""
        self.lost |= {(name, digest): CLOCK.monotonic_s() for digest in digests}
        self._before[name] -= digests

    def look(self) -> None:
        now = {name: node.blobs() for name, node in self._nodes.items()}
        for name, held in now.items():
            self.seen |= held
            for digest in self._before[name] - held:
                self._judge(name, digest)
        self._before = {name: held | (self._before[name] & held) for name, held in now.items()}

    def _judge(self, name: str, digest: str) -> None:
        if self._lost_lately(name, digest):
            return  # damaged by the driver, and set aside
        self.met["deleted"] += 1
        others = [
            other
            for other, node in self._nodes.items()
            if other != name and (node.sound(digest) or self._lost_lately(other, digest))
        ]
        if len(others) < COPIES_MIN:
            self.violations.append(f"{name} deleted {digest[:12]}, which only {others} have")

    def _lost_lately(self, name: str, digest: str) -> bool:
        return CLOCK.monotonic_s() - self.lost.get((name, digest), float("-inf")) < EXCUSED_S


# --- the faults -------------------------------------------------------------------------------------------


class Driver:
    """Makes things go wrong, and looks whether the nodes know what is on their disks."""

    def __init__(self, root: Path, seed: int, bug: str) -> None:
        self.rng, self.root = random.Random(seed), root
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(DISK)
        self.nodes = {name: Node(root, name, seed * 1000 + 100 * i, bug) for i, name in enumerate(NAMES)}
        self.observer = Observer(self.nodes)
        self.met: Counter[str] = Counter()
        self.compared: list[dict[str, object]] = []
        self._wiped_s = CLOCK.monotonic_s()

    async def run(self, seconds: float) -> None:
        await self._start()
        await self._first_deletion()
        end_s, middle_s = CLOCK.monotonic_s() + seconds, CLOCK.monotonic_s() + seconds / 2
        while CLOCK.monotonic_s() < end_s:
            await self._fault()
            await CLOCK.sleep(self.rng.uniform(0.2, 2.0))
            if seconds >= 120 and CLOCK.monotonic_s() >= middle_s:
                middle_s = float("inf")
                await self._compare()
        await self._compare()

    async def _start(self) -> None:
        for node in self.nodes.values():
            node.lines = {
                name: await Line(other.port).open() for name, other in self.nodes.items() if other is not node
            }
        for node in self.nodes.values():
            node.start_server()
            node.start_process()
        self.observer.start()

    async def _first_deletion(self) -> None:
        """Wait for files, copies of them, and a node that deletes one."""
        end_s = CLOCK.monotonic_s() + FIRST_S
        while not self.observer.met["deleted"] and CLOCK.monotonic_s() < end_s:
            await CLOCK.sleep(0.1)

    async def catch(self, seconds: float) -> None:
        """Without faults, until the observer sees a violation."""
        await self._start()
        end_s = CLOCK.monotonic_s() + seconds
        while not self.observer.violations and CLOCK.monotonic_s() < end_s:
            await CLOCK.sleep(0.1)

    async def _fault(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        kinds = {"fill": 8, "kill": 2, "kill server": 2, "stop": 2, "cut": 3, "damage": 1, "wipe": 1}
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "wipe" and CLOCK.monotonic_s() - self._wiped_s < 30.0:
            return  # repair has had no time: two lost disks in a row are a lost file, not a test
        self.met[kind] += 1
        await getattr(self, "_" + kind.replace(" ", "_"))(node)

    async def _fill(self, node: Node) -> None:
        node.fill(self.rng.choice((40, 60, 77, 77, 77, 90, 96)))

    async def _kill(self, node: Node) -> None:
        assert node.process is not None
        node.process.kill()
        await asyncio.to_thread(node.process.wait)
        await CLOCK.sleep(self.rng.uniform(0.0, 3.0))
        node.start_process()

    async def _kill_server(self, node: Node) -> None:
        assert node.server is not None
        node.server.kill()
        await asyncio.to_thread(node.server.wait)
        await CLOCK.sleep(self.rng.uniform(0.0, 3.0))
        node.start_server()

    async def _stop(self, node: Node) -> None:
        process = self.rng.choice((node.process, node.server))
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await CLOCK.sleep(self.rng.uniform(0.5, 6.0))
        process.send_signal(signal.SIGCONT)

    async def _cut(self, node: Node) -> None:
        other = self.rng.choice([each for each in self.nodes.values() if each is not node])
        lines = [node.lines[other.name], other.lines[node.name]]
        for line in lines[: self.rng.randint(1, 2)]:
            line.break_off()
        await CLOCK.sleep(self.rng.uniform(0.5, 6.0))
        for line in lines:
            line.cut = False

    async def _damage(self, node: Node) -> None:
        with self.observer.lock:
            held = sorted(node.blobs())
            if not held:
                return
            digest = self.rng.choice(held)
            path = node.folder / "blobs" / digest[:2] / digest
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                path.chmod(0o600)
                path.write_bytes(b"\0" * size)
                self.observer.took(node.name, {digest})

    async def _wipe(self, node: Node) -> None:
        self._wiped_s = CLOCK.monotonic_s()
        with self.observer.lock:
            node.kill()
            self.observer.took(node.name, node.blobs())
            shutil.rmtree(node.folder / "blobs", ignore_errors=True)  # a disk may be lost twice in a row
        await CLOCK.sleep(self.rng.uniform(0.0, 2.0))
        node.start_server()
        node.start_process()

    # --- what the nodes say against what is there -----------------------------------------------------

    async def _compare(self) -> None:
        """Let the nodes rest on disks with room; then each must say what is on the disks."""
        (self.root / "quiet").touch()
        for node in self.nodes.values():
            node.fill(40)
        for name in NAMES:
            await self._compare_one(self.nodes[name])
        (self.root / "quiet").unlink()

    async def _compare_one(self, node: Node) -> None:
        end_s = CLOCK.monotonic_s() + SETTLED_S
        while True:
            before = self._copies()
            told = await asyncio.to_thread(node.ask, "replicas")
            known = await asyncio.to_thread(node.ask, "ls", "--limit", "100000")
            counted = Counter(len(before.get(row["digest"], ())) for row in known)  # type: ignore[index]
            independent = {str(copies): number for copies, number in sorted(counted.items())}
            if self._copies() == before and told["by_copies"] == independent and not told["unknown"]:
                found = {"node": node.name, "files": len(known), "by_copies": independent}
                self.compared.append(found)
                return
            if CLOCK.monotonic_s() > end_s:
                raise AssertionError(f"{node.name} says {told['by_copies']}, the disks {independent}: {told}")
            await CLOCK.sleep(1.0)

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
        return {
            "files": len(self.observer.seen),
            "deleted": self.observer.met["deleted"],
            "faults": dict(self.met),
            "compared": self.compared,
            "violations": self.observer.violations,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folders for a look")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="plant this one; it must be caught")
    parser.add_argument("--node", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        asyncio.run(live_as_node(options.seed, options.bug))
        return 0
    root = Path(tempfile.mkdtemp(prefix="three-nodes-"))
    driver = Driver(root, options.seed, options.bug)
    try:
        asyncio.run(driver.catch(options.seconds) if options.bug else driver.run(options.seconds))
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
    return 1 if bool(report["violations"]) != bool(options.bug) else 0


if __name__ == "__main__":
    sys.exit(main())
