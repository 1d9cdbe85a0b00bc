"""A bare SQLite loop with the same durability and batch size: the least that a queue on SQLite must do.

It hands out rows with a lease and a token and marks them done; it has no priorities, filters, wake-ups,
expiry, dependencies or errors. Run as `producer JOBS` or `worker`.
"""

import json
import os
import sqlite3
import sys
import time

BATCH = 100
LEASE_S = 30.0

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS job(
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL, token INTEGER, lease_until_s REAL, payload TEXT);
CREATE INDEX IF NOT EXISTS job_ready ON job(id) WHERE state = 0;
"""


def connect(path):
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.executescript(SCHEMA)
    db.execute("PRAGMA synchronous = FULL")
    return db


def produce(db, jobs):
    print(time.time(), flush=True)
    for start in range(0, jobs, BATCH):
        rows = [(json.dumps({"number": n}),) for n in range(start, min(start + BATCH, jobs))]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO job(state, payload) VALUES (0, ?)", rows)
        db.execute("COMMIT")


def work(db, done):
    token = os.getpid() << 32
    while True:
        token += 1
        db.execute("BEGIN IMMEDIATE")
        claimed = db.execute(
            "UPDATE job SET state = 1, token = ?, lease_until_s = ? WHERE id IN"
            " (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, payload",
            (token, time.time() + LEASE_S, BATCH),
        ).fetchall()
        db.execute("COMMIT")
        if not claimed:
            time.sleep(0.001)
            continue
        for _, payload in claimed:
            json.loads(payload)
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE job SET state = 2 WHERE id = ? AND token = ? AND state = 1",
            [(number, token) for number, _ in claimed],
        )
        db.execute("COMMIT")
        os.write(done, b"x" * len(claimed))


if __name__ == "__main__":
    database = connect(os.environ["BENCH_BARE_DB"])
    if sys.argv[1] == "producer":
        produce(database, int(sys.argv[2]))
    else:
        work(database, os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
