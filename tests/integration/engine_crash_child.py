"""The processes that the crash test kills. One parent imports everything once and forks each of them.

A child opens the engine and works until it is killed. It notes `begin OPERATION` before and `done ...`
after each call, straight into its own file; what is noted as done was acknowledged.
"""

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path

from ringrift.engine.ports import Claimant, Completion, LogEvent, NewWork
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import Conflict, LeaseLost
from ringrift.runtime import SystemRuntime

LEASE_S = 0.5


class Notes:
    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, operation):
        os.write(self._file, f"begin {operation}\n".encode())

    def done(self, *facts):
        os.write(self._file, ("done " + " ".join(map(str, facts)) + "\n").encode())


async def produce(engine, notes, name):
    number = 0
    while True:
        ids = [f"{name}-{number}-{n}" for n in range(3)]
        number += 1
        notes.begin("append")
        await engine.events.append([LogEvent(id=item_id, type="T", body=b"{}") for item_id in ids])
        notes.done("append", *ids)
        notes.begin("add")
        await engine.queue.add([NewWork(kind="job", id=item_id, attempts_max=1000) for item_id in ids])
        notes.done("add", *ids)


async def work(engine, notes, name):
    me = Claimant(worker=name)
    while True:
        notes.begin("claim")
        claims = await engine.queue.claim(me, lease_s=LEASE_S, limit=4, wait_s=0.2)
        notes.done("claim", *(f"{claim.id}:{claim.token}" for claim in claims))
        for claim in claims[:1]:
            notes.begin("complete")
            try:
                await engine.queue.complete(claim.id, token=claim.token, result={"by": name})
                notes.done("complete", f"{claim.id}:{claim.token}")
            except LeaseLost:
                notes.done("refused", claim.id)
        if claims[1:]:
            notes.begin("complete")
            done = [Completion(id=c.id, token=c.token, result={"by": name}) for c in claims[1:]]
            refused = set(await engine.queue.complete_many(done))
            notes.done("complete", *(f"{c.id}:{c.token}" for c in claims[1:] if c.id not in refused))


async def control(engine, notes, name):
    while True:
        notes.begin("count")
        entry = await engine.kv.get("count")
        try:
            if entry is None:
                await engine.kv.create("count", b"1")
            else:
                await engine.kv.update("count", b"%d" % (int(entry.value) + 1), revision=entry.revision)
            notes.done("count", 1)
        except Conflict:
            notes.done("refused", "count")
        notes.begin("expire")
        await engine.queue.expire()
        await engine.events.trim()
        notes.done("expire")
        notes.begin("blob")
        digest = await engine.blobs.put_bytes(name.encode() * 2000)
        notes.done("blob", digest)


ROLES = {"producer": produce, "worker": work, "control": control}


async def live(folder, role, name):
    notes = Notes(folder / "notes" / name)
    config = SqliteConfig(database=folder / "engine" / "c.db", blob_dir=folder / "blobs", upkeep_s=0.05)
    notes.begin("open")
    engine = await asyncio.to_thread(open_sqlite, config, SystemRuntime())
    notes.done("open")
    await ROLES[role](engine, notes, name)


def fork_children(folder):
    """Fork a child per line `ROLE NAME` on standard input; answer with its process number."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    for line in sys.stdin:
        role, name = line.split()
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(folder / "notes" / f"{name}.err", os.O_WRONLY | os.O_CREAT), 2)
            try:
                asyncio.run(live(folder, role, name))
            finally:
                traceback.print_exc()
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    fork_children(Path(sys.argv[1]))
