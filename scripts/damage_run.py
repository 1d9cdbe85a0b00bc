"""A run with every kind of durable file that the product writes, and which file is of which kind.

The run learns with tiny jobs and keeps an archive on a drive. What only other nodes bring about (promises to
keep a file, files that arrived or are under way) is written by the parts of the product that write it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from loop_under_test import Loop, hit
from lost_machine import NODE, prepare_drive

from ringrift.daemons.restarts import JsonLedger, RestartRecord
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.backup.archive import ArchiveIndex, DriveObjects, merged
from ringrift.data.protection.promise_store import PromiseStore
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.data.transfer.receiving import Intake, open_intake
from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.learning.facts.high_water import mark_path, read_mark
from ringrift.runtime import system_runtime
from ringrift.settings import load_settings

RUNTIME = system_runtime()
SETTINGS, DATA, DRIVE, TRACES = "ringrift.toml", "data", "drive", "traces"
RECORDED_GAMES = Path(__file__).resolve().parents[1] / "tests" / "data" / "ringrift_traces"
RECORDED, RECORDED_STEPS = 3, 12
PEER = "peer"
PROMISED = 3  # files
PROMISED_S = 86_400.0  # longer than any sweep
UNDER_WAY = hashlib.sha512(b"a file that is under way").digest() * (CHUNK_BYTES // 64 + 1000)
PROMOTED = '"fact":"promoted"'
MORE_FACTS = 5
LEARN_S_MAX = 300.0
TLS_THERE = find_spec("cryptography") is not None


# --- making -------------------------------------------------------------------------------------------------


def make_run(folder: Path, *, promotions: int = 2) -> tuple[Path, Path]:
    """Learn, keep all as it was after the first promotion, learn on, and kill; return (now, then)."""
    loop, drive = loop_in(folder), folder / DRIVE
    prepare_drive(drive)
    _write_settings(folder, grace_s=20)
    asyncio.run(_learn(loop, drive, promotions=1))
    asyncio.run(_kill(loop))
    _in_a_process_that_dies(_write_what_nodes_bring, folder, files=1)
    then, now = folder / "then", folder / "now"
    _copy(folder, then)
    _write_settings(folder, grace_s=10)
    facts = _facts(loop.data) + MORE_FACTS
    asyncio.run(_learn(loop, drive, promotions=promotions, facts=facts))
    asyncio.run(_kill(loop))
    _in_a_process_that_dies(_write_what_nodes_bring, folder, files=PROMISED)
    _copy(folder, now)
    return now, then


def loop_in(folder: Path) -> Loop:
    """The loop of a folder, whose settings stand in its `ringrift.toml`."""
    loop = Loop(folder, tiny=True)
    loop.variables = {"RINGRIFT_DATA_DIR": str(loop.data), "NO_COLOR": "1"}
    return loop


def _write_settings(folder: Path, *, grace_s: int) -> None:
    told = Loop(folder, tiny=True).variables
    top = {
        "node_name": NODE,
        "health_port": 0,
        "health_tls": TLS_THERE,
        "job_lease": float(told["RINGRIFT_JOB_LEASE"]),
        "job_grace_period": grace_s,
    }
    tables = {
        "learning": json.loads(told["RINGRIFT_LEARNING"]),
        "nodes": {NODE: {}, "archive": {"drive_path": DRIVE}},
        "jobs": json.loads(told["RINGRIFT_JOBS"]),
    }
    lines = [f"{name} = {_toml(value)}" for name, value in top.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    (folder / SETTINGS).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


async def _learn(loop: Loop, drive: Path, *, promotions: int, facts: int = 0) -> None:
    loop.start()
    end_s = RUNTIME.monotonic_s() + LEARN_S_MAX
    while RUNTIME.monotonic_s() < end_s:
        await RUNTIME.sleep(0.2)
        if not loop.is_up:
            raise RuntimeError(loop.last_words())
        done = _facts(loop.data, PROMOTED) >= promotions and _facts(loop.data) >= facts
        if done and mark_path(loop.data).exists() and _promotions_in(drive) >= promotions:
            return
    raise TimeoutError(loop.last_words())


async def _kill(loop: Loop) -> None:
    """Kill it when its mark covers every fact: what is lost in the moment before that is not noticed."""
    end_s = RUNTIME.monotonic_s() + LEARN_S_MAX
    while RUNTIME.monotonic_s() < end_s:
        processes = [each for group in loop.processes().values() for each in group]
        for process in processes:
            hit(process, signal.SIGSTOP)
        mark = read_mark(loop.data)
        if mark is not None and sum(each.facts for each in mark.configs.values()) == _facts(loop.data):
            break
        for process in processes:
            hit(process, signal.SIGCONT)
        await RUNTIME.sleep(0.05)
    loop.kill_everything()


def _facts(data: Path, with_text: str = "") -> int:
    database = data / "coordination" / "coordinator.db"
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
        query = "SELECT count(*) FROM kv WHERE key LIKE 'learning/fact/%' AND instr(CAST(value AS TEXT), ?)"
        return int(db.execute(query, (with_text,)).fetchone()[0])


def _promotions_in(drive: Path) -> int:
    """How many champions the states of the archive know."""
    states = [json.loads(each.read_bytes()) for each in drive.glob("states/**/state.json")]
    return len({champion for state in states for champion in state.get("champions", {}).values()})


def _in_a_process_that_dies(work: Callable[..., None], folder: Path, *, files: int) -> None:
    """As after a kill, what a database writes when it is closed is not written."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(folder, files=files)
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("what other nodes bring could not be written")


def _write_what_nodes_bring(folder: Path, *, files: int) -> None:
    """Promises, arrivals, a transfer that broke off, a dead letter, restarts of a daemon, recorded games."""
    settings = load_settings(
        {"RINGRIFT_DATA_DIR": str(folder / DATA), "RINGRIFT_NODE_ID": NODE}, config_file=folder / SETTINGS
    ).settings
    record = PromiseStore(settings.blob_dir, RUNTIME)
    for digest in promised_files(folder / DATA)[:files]:
        record.promise(digest, asker=PEER, promise=f"promise {digest[:4]}", keep_s=PROMISED_S)
    record.close()
    intake = open_intake(settings, RUNTIME, node=NODE)
    for number in range(files):
        _arrive(intake, f"brought by a peer, number {number}".encode())
    incoming = intake.incoming(hashlib.sha256(UNDER_WAY).hexdigest(), len(UNDER_WAY))
    first = UNDER_WAY[:CHUNK_BYTES]
    incoming.write(0, hashlib.sha256(first).digest(), memoryview(first))
    if files > 1:
        incoming.keep_begun(1, memoryview(UNDER_WAY)[CHUNK_BYTES : CHUNK_BYTES + 5000])
    intake.let_go(incoming)
    letters = DeadLetterQueue(settings.dlq_path, runtime=RUNTIME)
    letters.capture("MODEL_PROMOTED", {"config_key": "connect_four_2p"}, "a handler", "it failed")
    ledger = JsonLedger(settings.coordination_dir / "daemon_restarts.json", RUNTIME)
    restarts = RestartRecord(in_a_row=files, recent_s=(), failed_for_good_s=None, total=files, last_error="")
    asyncio.run(ledger.save({"DATA_CLEANUP": restarts}, now_s=RUNTIME.now_s()))
    asyncio.run(_write_manifest(folder / DRIVE))
    _write_recorded_games(folder / TRACES)


async def _write_manifest(drive: Path) -> None:
    index = ArchiveIndex(DriveObjects(drive, RUNTIME.new_id))
    cards, lists = await index.cards(), await index.inventories()
    await index.write_manifest(merged(None, cards, lists, now_s=RUNTIME.now_s()))


def promised_files(data: Path) -> list[str]:
    """The digests of files that a peer has the promise for."""
    return sorted(_blob_kinds(data))[:PROMISED]


def _arrive(intake: Intake, content: bytes) -> None:
    """A small file comes from a peer, as the data server takes it in."""
    digest = hashlib.sha256(content).hexdigest()
    card = Artifact(
        digest=digest, size=len(content), kind=ArtifactKind.GAMES, created_s=RUNTIME.now_s(), node=PEER
    )
    with intake.batch("http") as batch:
        batch.add(digest, memoryview(content))
        taken = batch.seal()
    intake.index.keep(digest, hashlib.sha256(content).digest())
    intake.cards.put([msgspec.Raw(msgspec.json.encode(card))], taken.receipts, sender=PEER)


def _write_recorded_games(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with gzip.open(RECORDED_GAMES / "square8_2p.jsonl.gz") as source:
        records = [json.loads(source.readline()) for _ in range(RECORDED)]
    for record in records:
        record["steps"] = record["steps"][:RECORDED_STEPS]
        record.pop("winner", None)
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    (folder / "games.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))


def _copy(folder: Path, target: Path) -> None:
    target.mkdir()
    shutil.copyfile(folder / SETTINGS, target / SETTINGS)
    for name in (DATA, DRIVE, TRACES):
        shutil.copytree(
            folder / name,
            target / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.wake", "*.unfinished*"),
        )


def link_copy(source: Path, target: Path) -> None:
    """A copy whose sealed files, which nobody writes to, are the same files."""
    for folder, _, names in os.walk(source):
        inside = os.path.relpath(folder, source)
        there = os.path.normpath(os.path.join(target, inside))
        os.mkdir(there)
        sealed = inside.startswith((f"{DATA}/blobs/", f"{DRIVE}/parts", f"{DRIVE}/states"))
        sealed = sealed and "/." not in inside
        for name in names:
            (os.link if sealed else shutil.copyfile)(os.path.join(folder, name), os.path.join(there, name))
            if not sealed:
                shutil.copymode(os.path.join(folder, name), os.path.join(there, name))
        os.chmod(there, os.stat(folder).st_mode)


# --- kinds --------------------------------------------------------------------------------------------------

ARCHIVE, NODE_RECORD, GAMES = "archive: ", "node: ", "recorded games"
_COORDINATION = {
    "coordinator.db": "database",
    "coordinator.db-wal": "write-ahead log",
    "coordinator.db-shm": "index of the log",
    "dead_letter_queue.db": "dead letters",
    "dead_letter_queue.db-wal": "dead letters: log",
    "dead_letter_queue.db-shm": "dead letters: index",
    "dead_letter_queue.db.stored": "dead letters: count",
    "daemon_restarts.json": "restarts of daemons",
}
_AT_THE_TOP = {
    "high_water.json": "high-water mark",
    "http_token": "token of the page",
    "data_secret": "secret of the nodes",
    "curriculum_weights.json": "curriculum weights",
}
_FOLDERS = {
    "jobs": "job folders",
    "models": "published models",
    "logs": "logs",
    "tls": "TLS key, certificate",
}
_ARCHIVE = {
    "parts": "files",
    "cards": "cards of files",
    "nodes": "lists of nodes",
    "manifest.json": "manifest",
    "states": "states",
    "ringrift-archive.json": "marker",
}


def kinds_of_files(place: Path) -> dict[str, list[Path]]:
    """Every file by its kind, as paths inside *place*."""
    blobs = _blob_kinds(place / DATA)
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(each for each in place.rglob("*") if each.is_file() and not each.is_symlink()):
        inside = path.relative_to(place)
        found[_kind(inside, blobs)].append(inside)
    return dict(sorted(found.items()))


def _kind(inside: Path, blobs: dict[str, str]) -> str:
    room, name = inside.parts[0], inside.name
    if room == SETTINGS:
        return "settings"
    if room == TRACES:
        return GAMES
    top = inside.parts[1]
    if room == DRIVE:
        described = top == "states" and name == "state.json"
        return ARCHIVE + ("descriptions of states" if described else _ARCHIVE.get(top, top))
    if top == "blobs":
        return _kind_beside_blobs(inside) or f"blob: {blobs.get(name, 'not named by a fact')}"
    if top == "coordination":
        if ".notes." in name:
            return "delivery notes"
        return _COORDINATION.get(name, "locks, pids, addresses")
    return _AT_THE_TOP.get(top) or _FOLDERS.get(top) or f"other: {top}"


def _kind_beside_blobs(inside: Path) -> str:
    """Of what is in the blob folder and no blob."""
    top, name = inside.parts[2], inside.name
    if top == ".cards":
        return f"{NODE_RECORD}cards of arrivals"
    if top == ".incoming":
        return f"{NODE_RECORD}files under way"
    if name.startswith("chunks.db"):
        return f"{NODE_RECORD}index of chunks"
    if name.startswith("promises"):
        return (
            f"{NODE_RECORD}promises" if name.startswith("promises.db") else f"{NODE_RECORD}mark of promises"
        )
    return ""


def _blob_kinds(data: Path) -> dict[str, str]:
    """The kind of every artifact, by the reports in the database."""
    found: dict[str, str] = {}
    database = data / "coordination" / "coordinator.db"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
        for (value,) in db.execute("SELECT value FROM kv WHERE key LIKE 'learning/fact/%' ORDER BY key"):
            for artifact in (json.loads(value).get("report") or {}).get("artifacts", ()):
                found[artifact["digest"]] = artifact["kind"]
    return found
