"""The engine on JetStream beside the bare client on the same server: events, and work items.

One server of the packaged program, its files on disk. One by one is a call after the other, each
acknowledged; together are 100 at a time. A work item is added, claimed and completed; with the bare client it
is published, fetched and acknowledged. Medians of rounds by turns.
"""

import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats

from benchmark import command
from ringrift.engine.nats.engine import open_nats
from ringrift.engine.nats.link import NatsConfig
from ringrift.engine.nats.server import local_server
from ringrift.engine.ports import Claimant, LogEvent, NewWork
from ringrift.runtime import SystemRuntime

AT_ONCE = 100
ROUNDS, QUICK_ROUNDS = 5, 2
TARGET = 0.7  # of the bare client
PORT = 14_333
END_S = 10.0
BODY = b"x" * 300
SIZES = {"event, one by one": 400, "event, together": 4_000, "item, one by one": 60, "item, together": 2_000}
WORKER = Claimant(worker="w")


async def together(count, one):
    gate = asyncio.Semaphore(AT_ONCE)

    async def gated(number):
        async with gate:
            await one(number)

    await asyncio.gather(*(gated(number) for number in range(count)))


class Bare:
    """The client and nothing else."""

    def __init__(self, client):
        self.stream, self.round = client.jetstream(), 0

    async def publish(self, number):
        await self.stream.publish("bare.a", BODY, headers={"Nats-Msg-Id": f"{self.round}-{number}"})

    async def add(self, _):
        await self.stream.publish("work.a", BODY)

    async def take(self, consumer, limit):
        messages = await consumer.fetch(limit, timeout=5)
        await asyncio.gather(*(message.ack_sync() for message in messages))
        return len(messages)

    async def items(self, count, *, at_once):
        consumer = await self.stream.pull_subscribe("work.a", durable="bench")
        if at_once:
            await together(count, self.add)
            done = 0
            while done < count:
                done += await self.take(consumer, AT_ONCE)
            return
        for number in range(count):
            await self.add(number)
            await self.take(consumer, 1)


class Ours:
    def __init__(self, engine):
        self.engine, self.round = engine, 0

    async def publish(self, number):
        await self.engine.events.append([LogEvent(id=f"{self.round}-{number}", type="T", body=BODY)])

    async def add(self, _):
        await self.engine.queue.add([NewWork(kind="k", payload={"x": "y" * 200})])

    async def take(self, limit):
        queue = self.engine.queue
        claims = await queue.claim(WORKER, lease_s=60, limit=limit)
        await asyncio.gather(*(queue.complete(claim.id, token=claim.token) for claim in claims))
        return len(claims)

    async def items(self, count, *, at_once):
        if at_once:
            await together(count, self.add)
            done = 0
            while done < count:
                done += await self.take(AT_ONCE)
            return
        for number in range(count):
            await self.add(number)
            await self.take(1)


async def measured(side, what, count):
    side.round += 1
    began_s = time.perf_counter()
    if what.startswith("item"):
        await side.items(count, at_once=what.endswith("together"))
    elif what.endswith("together"):
        await together(count, side.publish)
    else:
        for number in range(count):
            await side.publish(number)
    return count / (time.perf_counter() - began_s)


async def compare(url, folder, rounds):
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name="BARE", subjects=["bare.>"])
    await stream.add_stream(name="WORK", subjects=["work.>"], retention="workqueue")
    engine = await asyncio.to_thread(
        open_nats, NatsConfig(servers=(url,), blob_dir=folder / "blobs"), SystemRuntime()
    )
    sides = {"bare": Bare(client), "ours": Ours(engine)}
    found = {what: {name: [] for name in sides} for what in SIZES}
    for _ in range(rounds):
        for what, count in SIZES.items():
            for name, side in sides.items():
                found[what][name].append(await measured(side, what, count))
    await engine.close()
    await client.close()
    return {what: {name: statistics.median(all_) for name, all_ in by.items()} for what, by in found.items()}


def wait_for(port):
    end_s = time.monotonic() + END_S
    while time.monotonic() < end_s:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the server does not listen")


def run(quick):
    with tempfile.TemporaryDirectory(prefix="ringrift-bench-") as name:
        folder = Path(name)
        server = local_server(folder / "nats", host="127.0.0.1", port=PORT)
        # As the bare client's usual server: both sides have the same, and neither waits for every sync.
        server.config.write_text(server.config.read_text().replace("sync_interval: always", ""))
        process = subprocess.Popen(server.argv, stderr=subprocess.DEVNULL)
        try:
            wait_for(PORT)
            rates = asyncio.run(compare(server.url, folder, QUICK_ROUNDS if quick else ROUNDS))
        finally:
            process.terminate()
            process.wait(END_S)
    ratios = {what: by["ours"] / by["bare"] for what, by in rates.items()}
    return {"rates": rates, "ratios": ratios, "met": min(ratios.values()) >= TARGET}


def table(result):
    lines = [f"the engine on JetStream beside the bare client, a second (target {TARGET:g} x)"]
    for what, by in result["rates"].items():
        ratio = result["ratios"][what]
        lines.append(f"  {what:20} ours {by['ours']:>8,.0f}   bare {by['bare']:>8,.0f}   {ratio:.2f} x")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
