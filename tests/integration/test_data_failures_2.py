"""Faults on the way to archives and over ssh: nothing wrong becomes visible, all arrives in the end."""

import asyncio
import random
import subprocess
import sys

import pytest

from data_transports import s3_bench, ssh_bench
from faulty_line import FaultyLine
from ringrift.data.transfer.contract import CHUNK_BYTES, Terms, TransferFailed

TRANSFERS = 12
MEMORY_MAX_MB = 100
BIG_BYTES = 180 << 20


async def test_row_09_faults_at_random_on_the_way_to_a_bucket(s3_bucket, tmp_path):
    rng = random.Random(5)
    port = int(s3_bucket.server.url.rpartition(":")[2])
    counted: list[str] = []
    async with FaultyLine(port) as line:
        bench = s3_bench(s3_bucket, tmp_path, endpoint=f"http://127.0.0.1:{line.port}")
        for number in range(TRANSFERS):
            # Each fault comes once for certain: in a file that is larger than where it breaks.
            certain = {0: "break", 1: "flip"}.get(number)
            content = rng.randbytes(1_500_000 if certain else rng.choice([10, 30_000, 200_000, 1_500_000]))
            card = bench.here.put(content)
            for attempt in range(12):
                faulty = attempt < 6
                breaks = certain == "break" or (certain is None and rng.random() < 0.5)
                line.break_after = rng.randrange(500_000) if faulty and breaks else None
                line.flips = int(certain == "flip") or rng.randrange(3) if faulty else 0
                try:
                    moved = await bench.transport.send(bench.node, [card], Terms())
                except TransferFailed:
                    continue
                counted += [receipt.digest for receipt in moved.receipts]
                assert bench.there.read(card) in (None, content)
                if not moved.failed:
                    break
            assert bench.there.read(card) == content
        assert sorted(counted) == sorted(set(counted))  # nothing arrived twice
        assert line.broken > 0
        assert line.flipped > 0


@pytest.mark.parametrize(("name", "receiver"), [("rsync", "--server"), ("base64", '" take "')])
async def test_row_09_a_killed_receiver_costs_time_only(
    name, receiver, own_ssh_server, tmp_path, tmp_path_factory
):
    bench = ssh_bench(name, own_ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    content = random.Random(3).randbytes(3 * CHUNK_BYTES)
    card = bench.here.put(content)
    own_ssh_server.hold(receiver)
    sending = asyncio.create_task(bench.transport.send(bench.node, [card], Terms()))
    async with asyncio.timeout(120):
        while not own_ssh_server.holds_one:
            assert not sending.done(), "it never met the gate"
            await asyncio.sleep(0.02)
    assert bench.there.read(card) is None
    own_ssh_server.let_go()
    assert own_ssh_server.kill_connections() > 0
    try:
        await sending
    except TransferFailed:
        assert bench.there.read(card) is None
    await bench.transport.send(bench.node, [card], Terms())
    assert bench.there.read(card) == content
    await bench.close()


MEASURE = """
import asyncio, os, resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from data_transports import artifact, drive_bench, s3_bench
from data_servers import Bucket, S3Server
from ringrift.data.artifacts import Artifact
from ringrift.data.transfer.contract import Terms

bench = {bench}
card = Artifact(digest={digest!r}, size={size})
place = bench.here.folder.place(card.digest)
place.parent.mkdir(parents=True)
with place.open("wb") as file:
    file.truncate(card.size)


async def there_and_back():
    small = bench.here.put(b"small")
    await bench.transport.send(bench.node, [small], Terms())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = await bench.transport.send(bench.node, [card], Terms())
    assert not sent.failed, sent
    place.unlink()
    fetched = await bench.transport.fetch(bench.node, [card], Terms())
    assert not fetched.failed, fetched
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


asyncio.run(there_and_back())
"""


@pytest.mark.parametrize("way", ["drive", "s3"])
def test_row_15_memory_does_not_grow_with_the_file(way, tmp_path, request):
    bench = f"drive_bench(Path({str(tmp_path)!r}))"
    if way == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        server = f"S3Server(None, {bucket.server.url!r})"
        bench = f"s3_bench(Bucket({server}, {bucket.name!r}), Path({str(tmp_path)!r}))"
    tests = str(request.config.rootpath / "tests")
    program = MEASURE.format(tests=tests, bench=bench, digest=sha256_of_zeros(), size=BIG_BYTES)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) < MEMORY_MAX_MB


def sha256_of_zeros():
    command = f"head -c {BIG_BYTES} /dev/zero | sha256sum"
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout.split()[0]
