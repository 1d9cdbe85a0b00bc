"""Dramatiq on Redis, as a peer of the work queue: the actor and the producer."""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["BENCH_REDIS_URL"])
dramatiq.set_broker(broker)
DONE = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@dramatiq.actor(max_retries=3)
def small_job(number):  # noqa: ARG001 - a job has a payload
    os.write(DONE, b"x")


def produce(jobs):
    print(time.time(), flush=True)
    for number in range(jobs):
        small_job.send(number)
