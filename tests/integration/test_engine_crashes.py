"""`kill -9` at 200 random moments: nothing acknowledged is lost, nothing is completed twice."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ringrift.engine.ports import Claimant, Completion, WorkState
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.runtime import SystemRuntime

KILLS, ROUND, KILLS_MAX = 200, 50, 800
# How long the herd is left alone between kills: as seems right, and where that meets too little of the work,
# so briefly that even the quickest is met at its beginning, or so long that even the slowest gets on.
PACES = (1.0, 0.1, 4.0)
ALIVE = ("producer", "worker", "worker", "control")
CHILD = Path(__file__).with_name("engine_crash_child.py")


class Herd:
    """Children that are killed and replaced."""

    def __init__(self, folder, rng):
        self._rng, self._count, self._notes = rng, 0, folder / "notes"
        self._forker = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.alive = [(role, *self._start(role)) for role in ALIVE]
        self.killed = []

    def _start(self, role):
        self._count += 1
        name = f"{role}-{self._count}"
        self._forker.stdin.write(f"{role} {name}\n")
        self._forker.stdin.flush()
        return name, int(self._forker.stdout.readline())

    def kill_one(self, *, replace=True):
        role, name, pid = self.alive.pop(self._rng.randrange(len(self.alive)))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            error = (self._notes / f"{name}.err").read_text()
            raise AssertionError(f"{name} ended by itself:\n{error}") from None
        self.killed.append((role, name))
        if replace:
            self.alive.append((role, *self._start(role)))

    def end(self):
        while self.alive:
            self.kill_one(replace=False)
        self._forker.stdin.close()
        self._forker.wait(10)
        self._forker.stdout.close()


class Record:
    """What the children noted, all together."""

    def __init__(self, notes_folder, killed):
        self.done = {operation: [] for operation in ("append", "add", "complete", "count", "blob", "claim")}
        self.killed_in, self.errors = Counter(), []
        for _, name in killed:
            # A line that the kill cut short was not finished, so it says nothing.
            lines = (notes_folder / name).read_text().splitlines() if (notes_folder / name).exists() else []
            for line in lines:
                word, operation, *facts = line.split()
                if word == "done" and operation in self.done:
                    self.done[operation] += facts
            if lines and lines[-1].startswith("begin"):
                self.killed_in[lines[-1].split()[1]] += 1
            error = notes_folder / f"{name}.err"
            if error.exists() and error.stat().st_size:
                self.errors.append(error.read_text())


async def finish_what_is_left(engine):
    me, deadline_s = Claimant(worker="last"), time.monotonic() + 90
    while True:
        claims = await engine.queue.claim(me, lease_s=30, limit=200, wait_s=0.2)
        await engine.queue.complete_many([Completion(id=c.id, token=c.token) for c in claims])
        states = (await engine.queue.counts()).get("job", {})
        if set(states) <= {WorkState.DONE}:
            return
        assert time.monotonic() < deadline_s, f"not recovered: {states}"


async def read_all_ids(engine):
    ids, after = [], 0
    while records := await engine.events.read(after=after, limit=5000):
        ids += [record.id for record in records]
        after = records[-1].seq
    return ids


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [20240])
def test_killed_at_200_random_moments(tmp_path, seed):
    rng = random.Random(seed)
    (tmp_path / "notes").mkdir()
    herd = Herd(tmp_path, rng)
    try:
        for kills in range(1, KILLS_MAX + 1):
            rounds_more = max(0, -(-(kills - KILLS) // ROUND))
            time.sleep(rng.uniform(0.002, 0.12) * PACES[rounds_more % len(PACES)])
            herd.kill_one()
            # A busy machine may need more kills to meet every operation; none is let off.
            at_a_round = kills >= KILLS and kills % ROUND == 0
            if at_a_round and not not_hit(Record(tmp_path / "notes", herd.killed)):
                break
    finally:
        herd.end()
    record = Record(tmp_path / "notes", herd.killed)
    assert record.errors == []
    asyncio.run(check_recovery(tmp_path, record))
    print("killed inside:", dict(record.killed_in))
    assert not_hit(record) == []


async def check_recovery(folder, record):
    config = SqliteConfig(database=folder / "engine" / "c.db", blob_dir=folder / "blobs")
    engine = await asyncio.to_thread(open_sqlite, config, SystemRuntime())
    try:
        stored = await read_all_ids(engine)
        assert len(stored) == len(set(stored))
        assert set(record.done["append"]) <= set(stored)

        await finish_what_is_left(engine)
        completed = Counter(fact.rpartition(":")[0] for fact in record.done["complete"])
        assert [item_id for item_id, times in completed.items() if times > 1] == []
        by_id = read_work(config.database)
        assert set(record.done["add"]) <= set(by_id)
        # The effect that is stored is that of the one acknowledged completion.
        for fact in record.done["complete"]:
            item_id, _, token = fact.rpartition(":")
            assert by_id[item_id] == int(token)

        entry = await engine.kv.get("count")
        assert entry is not None
        assert int(entry.value) >= len(record.done["count"])
        for digest in set(record.done["blob"]):
            await engine.blobs.verify(digest)
    finally:
        await engine.close()
    db = sqlite3.connect(config.database)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def read_work(database):
    db = sqlite3.connect(database)
    try:
        return dict(db.execute("SELECT id, token FROM work"))
    finally:
        db.close()


def not_hit(record):
    """A run that never killed anybody inside an operation would prove nothing; say what is missing."""
    inside = record.killed_in
    held = {fact.rpartition(":")[0] for fact in record.done["claim"]}
    completed = {fact.rpartition(":")[0] for fact in record.done["complete"]}
    reached = {
        "inside any operation": sum(inside.values()) > KILLS / 2,
        **{name: inside[name] >= 2 for name in ("open", "append", "add", "claim", "complete", "blob")},
        "count or expire": inside["count"] + inside["expire"] >= 2,
        "leases that had to run out": len(held - completed) >= 5,
        "enough completed": len(completed) > 100,
    }
    return [what for what, was_reached in reached.items() if not was_reached]
