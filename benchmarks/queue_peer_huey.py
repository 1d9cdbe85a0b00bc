"""Huey on SQLite, as a peer of the work queue: the task and the producer."""

import os
import time

from huey import SqliteHuey

huey = SqliteHuey("bench", filename=os.environ["BENCH_HUEY_DB"], results=False)
DONE = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@huey.task(retries=3)
def small_job(number):  # noqa: ARG001 - a job has a payload
    os.write(DONE, b"x")


def produce(jobs):
    print(time.time(), flush=True)
    for number in range(jobs):
        small_job(number)
