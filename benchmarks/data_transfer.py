"""Files from one node to another, beside plain rsync over a real sshd on the same machine.

Limits: a 1 GB file at least as fast as rsync; 1,000 files of 100 KB at 1.5 times its speed; a second pass
(nothing changed; 4 bytes changed in the 1 GB file) in at most 1.2 times its time; and under 100 MB of memory
in the sending and in the receiving process for a 5 GB file. Ours hashes every chunk and the whole at the
receiver and syncs files and folders before it says that they arrived; rsync does not sync, and encrypts.

rsync's time contains the start of its processes and of the SSH session, which it needs each time; ours
contains connecting and signing, not the start of Python, which runs anyway. Before each measurement the
machine's free memory is touched and its disk is idle: on a virtual machine, whoever first uses a page pays
for it. Rounds alternate in order; the figures are medians.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import mmap
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmark import command
from ringrift.tls import CertificateFiles

MB = 1_000_000
SECRET = "a secret of the benchmark"
MEMBER = Path(__file__).with_name("data_transfer_member.py")
STEPS = ("large, first", "large, unchanged", "large, 4 bytes changed", "small, first", "small, unchanged")
WANTED = {  # rsync's time over ours
    "large, first": 1.0,
    "small, first": 1.5,
    "large, unchanged": 1 / 1.2,
    "large, 4 bytes changed": 1 / 1.2,
    "small, unchanged": 1 / 1.2,
}
MEMORY_MB_MAX = 100.0
FULL = (1 << 30, 1000, 5 << 30, 3)  # bytes of the large file, small files, bytes of the huge file, rounds
QUICK = (64 << 20, 100, 256 << 20, 1)


class Source:
    """The files to send: blobs of the sending node, and the same bytes under plain names for rsync."""

    def __init__(self, root: Path, *, large_bytes: int, small_count: int) -> None:
        self.blobs, self.plain = root / "sender" / "blobs", root / "plain"
        self.large_bytes, self.small_count = large_bytes, small_count
        self._random = random.Random(1)
        (self.plain / "small").mkdir(parents=True)
        self.small = [self._small(number) for number in range(small_count)]
        self.large = self.generate(large_bytes)
        self.changed = self._changed()
        os.utime(self.place(self.changed), (time.time() + 10,) * 2)  # rsync looks at the time first

    def place(self, digest: str) -> Path:
        return self.blobs / digest[:2] / digest

    def generate(self, size: int) -> str:
        """Write a file of fresh bytes, without holding it in memory."""
        pool = [self._random.randbytes(1 << 20) for _ in range(16)]
        return self._write(
            (self._random.randbytes(16) + pool[n % 16])[: min(1 << 20, size - (n << 20))]
            for n in range(-(-size // (1 << 20)))
        )

    def _small(self, number: int) -> str:
        digest = self._write([self._random.randbytes(100_000)])
        os.link(self.place(digest), self.plain / "small" / str(number))
        return digest

    def _changed(self) -> str:
        def blocks() -> Iterator[bytes]:
            with self.place(self.large).open("rb") as file:
                for number, block in enumerate(iter(lambda: file.read(1 << 20), b"")):
                    yield block if number != self.large_bytes >> 21 else b"XXXX" + block[4:]

        return self._write(blocks())

    def _write(self, blocks: Any) -> str:
        digest, making = hashlib.sha256(), self.blobs / "making"
        self.blobs.mkdir(parents=True, exist_ok=True)
        with making.open("wb") as file:
            for block in blocks:
                digest.update(block)
                file.write(block)
        place = self.place(digest.hexdigest())
        place.parent.mkdir(exist_ok=True)
        os.replace(making, place)
        return digest.hexdigest()

    def show_large(self, digest: str) -> None:
        """Let rsync see this blob under the name of the large file."""
        (self.plain / "large").unlink(missing_ok=True)
        os.link(self.place(digest), self.plain / "large")


# --- the two ways ---------------------------------------------------------------------------------------


class Ours:
    """A data server and a sending process."""

    def __init__(self, root: Path, source: Source, stack: ExitStack, *, tls: bool = False) -> None:
        self._root, self._source, self._receiver = root, source, "receiver-tls" if tls else "receiver"
        receiver, own = root / self._receiver, {"RINGRIFT_DATA_TLS": "yes"} if tls else {}
        self._server = stack.enter_context(
            child([sys.executable, str(MEMBER), "serve"], environment(receiver, "receiver") | own)
        )
        address = receiver / "data_server.json"
        wait_until(address.exists)
        port = json.loads(address.read_text())["port"]
        made = CertificateFiles(receiver / "tls" / "certificate.pem", receiver / "tls" / "key.pem")
        words = ["send", str(port), *([made.fingerprint()] if tls else [])]
        self._sender = stack.enter_context(
            child([sys.executable, str(MEMBER), *words], environment(root / "sender", "sender"))
        )

    def send(self, digests: list[str]) -> float:
        """Send, wait for the receipts, and return the seconds."""
        files = [[digest, self._source.place(digest).stat().st_size] for digest in digests]
        self._sender.stdin.write(json.dumps(files) + "\n")
        self._sender.stdin.flush()
        answer = json.loads(self._sender.stdout.readline())
        assert answer["arrived"] == len(digests), answer
        return float(answer["seconds"])

    def cpu_s(self) -> float:
        """Processor time of both processes so far."""
        ticks = 0
        for process in (self._server, self._sender):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> dict[str, float]:
        return {"sender": peak_mb(self._sender.pid), "receiver": peak_mb(self._server.pid)}

    def forget(self) -> None:
        """Empty the receiver, for another first pass."""
        for folder in (self._root / self._receiver / "blobs").glob("[0-9a-f][0-9a-f]"):
            put_away(folder, self._root)


class Rsync:
    """Plain `rsync -a` over an sshd of its own."""

    def __init__(self, root: Path, source: Source, stack: ExitStack) -> None:
        self._root, self._target, self._source = root, root / "rsync", source
        self._target.mkdir()
        keys = root / "ssh"
        keys.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
        self._port = free_port()
        config = keys / "sshd_config"
        config.write_text(
            f"Port {self._port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nPidFile none\n"
            f"AuthorizedKeysFile {keys}/user.pub\nStrictModes no\nUsePAM no\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert sshd, "this benchmark needs sshd"
        stack.enter_context(child([sshd, "-D", "-e", "-f", str(config)], dict(os.environ)))
        wait_until(lambda: answers(self._port))
        self._ssh = (
            f"ssh -p {self._port} -i {keys}/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile={keys}/known -o LogLevel=ERROR"
        )

    def send(self, name: str) -> float:
        target = f"{getpass.getuser()}@127.0.0.1:{self._target}/"
        started_s = time.perf_counter()
        subprocess.run(["rsync", "-a", "-e", self._ssh, self._source.plain / name, target], check=True)
        return time.perf_counter() - started_s

    def forget(self) -> None:
        put_away(self._target, self._root)
        self._target.mkdir()


def one_round(ours: Ours, rsync: Rsync, source: Source, quiet: Callable[[], None], *, first: str) -> Times:
    """Every step once by each way, in the order that *first* begins."""
    times: Times = {"ours": {}, "rsync": {}}
    ours.forget()
    rsync.forget()
    steps: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "large, first": (lambda: ours.send([source.large]), lambda: rsync.send("large")),
        "large, unchanged": (lambda: ours.send([source.large]), lambda: rsync.send("large")),
        "large, 4 bytes changed": (lambda: ours.send([source.changed]), lambda: rsync.send("large")),
        "small, first": (lambda: ours.send(source.small), lambda: rsync.send("small")),
        "small, unchanged": (lambda: ours.send(source.small), lambda: rsync.send("small")),
    }
    for step, (by_us, by_rsync) in steps.items():
        source.show_large(source.changed if step == "large, 4 bytes changed" else source.large)
        for who in ("ours", "rsync") if first == "ours" else ("rsync", "ours"):
            quiet()
            times[who][step] = (by_us if who == "ours" else by_rsync)()
    return times


Times = dict[str, dict[str, float]]


def run(quick: bool) -> dict[str, Any]:
    large_bytes, small_count, memory_bytes, rounds = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="ringrift-bench-") as folder, ExitStack() as stack:
        root = Path(folder)
        source = Source(root, large_bytes=large_bytes, small_count=small_count)
        ours, rsync = Ours(root, source, stack), Rsync(root, source, stack)

        def quiet() -> None:
            touch_free_memory(3 * large_bytes)
            os.sync()

        quiet()
        all_times = [
            one_round(ours, rsync, source, quiet, first="rsync" if number % 2 else "ours")
            for number in range(rounds)
        ]
        huge = source.generate(memory_bytes)
        huge_s = ours.send([huge])
        peak = ours.peak_mb()
    median = {
        who: {step: statistics.median(times[who][step] for times in all_times) for step in STEPS}
        for who in ("ours", "rsync")
    }
    ratios = {step: median["rsync"][step] / median["ours"][step] for step in STEPS}
    memory_met = max(peak.values()) < MEMORY_MB_MAX
    return {
        "seconds": median,
        "rounds": all_times,
        "rsync_over_ours": ratios,
        "large_mb": large_bytes / MB,
        "small_mb": small_count * 100_000 / MB,
        "memory_file_mb": memory_bytes / MB,
        "memory_file_s": huge_s,
        "peak_mb": peak,
        "met": memory_met and all(ratios[step] >= WANTED[step] for step in STEPS),
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"{'step':<24} {'ours':>9} {'rsync':>9} {'x rsync':>8} {'wanted':>7}"]
    for step in STEPS:
        ours, theirs = (result["seconds"][who][step] for who in ("ours", "rsync"))
        ratio = result["rsync_over_ours"][step]
        lines.append(f"{step:<24} {ours:>7.3f} s {theirs:>7.3f} s {ratio:>8.2f} {WANTED[step]:>7.2f}")
    peak = result["peak_mb"]
    lines.append(
        f"{result['memory_file_mb']:.0f} MB file in {result['memory_file_s']:.1f} s: "
        f"sender {peak['sender']:.0f} MB, receiver {peak['receiver']:.0f} MB, limit {MEMORY_MB_MAX:g}"
    )
    return "\n".join(lines)


# --- the machine ----------------------------------------------------------------------------------------


def environment(data: Path, node: str) -> dict[str, str]:
    return {
        **os.environ,
        "RINGRIFT_DATA_DIR": str(data),
        "RINGRIFT_NODE_ID": node,
        "RINGRIFT_DATA_PORT": "0",
        "RINGRIFT_DATA_SECRET": SECRET,
    }


@contextmanager
def child(argv: list[str], env: dict[str, str]) -> Iterator[Any]:
    # A session of its own, as sshd's are: on a busy machine the scheduler shares by sessions.
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def put_away(folder: Path, root: Path) -> None:
    """Move aside: ext4 looks long for an inode where many were deleted a moment ago."""
    away = root / "away"
    away.mkdir(exist_ok=True)
    folder.rename(away / f"{folder.name}.{time.perf_counter_ns()}")


def touch_free_memory(size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024 / MB


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(happened: Callable[[], bool]) -> None:
    started_s = time.perf_counter()
    while not happened():
        assert time.perf_counter() - started_s < 30, "a server did not come up"
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
