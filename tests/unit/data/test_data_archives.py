"""Opening archives: what a user hears who lacks the client, the bucket, the drive or the right words."""

import hashlib
import random
import subprocess
import sys

import msgspec
import pytest
from structlog.testing import capture_logs

from data_transports import s3_bench
from ringrift.data.backup.archive import MARKER, DriveObjects, NodeInventory, check_marker, decode, encode
from ringrift.data.backup.run_states import StateArchive
from ringrift.data.config import DataNode, read_nodes
from ringrift.data.transfer.archive import open_archive
from ringrift.data.transfer.contract import Terms, TransferFailed
from ringrift.errors import ConfigError, Corrupt, SchemaTooNew
from ringrift.runtime import SystemRuntime

BUCKET = DataNode(name="archive", s3_url="s3://bucket/prefix")


def test_without_the_client_a_bucket_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "ringrift.data.backup.s3", raising=False)
    with pytest.raises(ConfigError, match=r"'archive' has an s3_url.*pip install 'ringrift\[s3\]'"):
        open_archive(BUCKET, SystemRuntime())


def test_the_client_is_loaded_only_for_a_bucket():
    program = (
        "import sys, ringrift.data.backup.daemons, ringrift.data.plane;"
        "sys.exit(any(name.split('.')[0] in ('obstore', 'boto3') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("url", ["bucket/prefix", "https://bucket", "s3:///prefix", "s3://"])
def test_an_address_that_is_no_bucket_is_refused(url):
    with pytest.raises(ConfigError, match="s3://BUCKET/PREFIX"):
        open_archive(DataNode(name="archive", s3_url=url), SystemRuntime())


def test_a_node_that_is_no_archive_is_refused():
    with pytest.raises(ConfigError, match="neither s3_url nor drive_path"):
        open_archive(DataNode(name="gpu-1"), SystemRuntime())


def test_archives_are_nodes_of_the_config_file():
    table = {"archive": {"s3_url": "s3://games/ringrift", "s3_endpoint": "http://minio:9000"}}
    assert read_nodes("here", table)["archive"].s3_endpoint == "http://minio:9000"


async def test_a_bucket_that_does_not_exist_is_told(s3_bucket, tmp_path):
    bench = s3_bench(s3_bucket, tmp_path)
    nowhere = DataNode(name="there", s3_url="s3://no-such-bucket-of-ours/x", s3_endpoint=s3_bucket.server.url)
    with pytest.raises(TransferFailed, match="'no-such-bucket-of-ours' does not exist"):
        await bench.transport.send(nowhere, [bench.here.put(b"x")], Terms())


async def test_a_transfer_that_broke_off_goes_on_though_parts_are_cut_in_another_size_by_now(
    s3_bucket, tmp_path
):
    content = random.Random(1).randbytes(5 << 20)
    bench = s3_bench(s3_bucket, tmp_path)
    card = bench.here.put(content)
    offset = 0
    for size in (1 << 18, 1 << 19, 1 << 20):  # the line grew quicker, and then it broke
        part = content[offset : offset + size]
        digest = hashlib.sha256(part).hexdigest()
        bench.there.objects.write(f"parts/{digest[:2]}/{digest}", part)
        offset += size
    bench.transport._part_bytes[bench.node.name] = 1 << 21  # what the line brings now
    moved = await bench.transport.send(bench.node, [card], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
    assert moved.bytes_sent == len(content) - offset


def test_an_object_whose_bytes_changed_is_not_believed():
    listed = NodeInventory(node="one", at_s=1.0, digests=("ab" * 32,))
    stored = encode(listed)
    assert decode("nodes/one.json", stored, NodeInventory) == listed
    for place in range(len(stored)):
        changed = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
        try:
            assert decode("nodes/one.json", changed, NodeInventory) == listed
        except Corrupt as error:
            assert "nodes/one.json" in str(error)
    earlier = msgspec.json.encode(listed)
    assert decode("nodes/one.json", earlier, NodeInventory) == listed


async def test_a_state_without_its_description_is_said_to_whoever_asks_for_all(tmp_path):
    drive = DriveObjects(tmp_path, SystemRuntime().new_id)
    await drive.create("states/run/one/20260101T000000.000000Z-ab/part-00000", b"part")
    with capture_logs() as said:
        assert await StateArchive(drive).all() == []
    assert [line["key"] for line in said] == ["states/run/one/20260101T000000.000000Z-ab/state.json"]
    with capture_logs() as said:
        assert await StateArchive(drive).all(run="run", node="one") == []
    assert said == []


async def test_an_archive_of_a_newer_version_is_left_alone(s3_bucket, tmp_path):
    bench = s3_bench(s3_bucket, tmp_path)
    bench.there.objects.write(MARKER, b'{"format": 99}')
    with pytest.raises(SchemaTooNew, match="format 99"):
        await bench.transport.send(bench.node, [bench.here.put(b"x")], Terms())
    assert bench.there.objects.names() == [MARKER]


def test_a_marker_that_is_no_marker_is_told():
    with pytest.raises(Corrupt):
        check_marker("s3://x", b"<html>")


async def test_a_drive_is_prepared_once_and_only_a_folder_can_be_one(tmp_path):
    drive = DriveObjects(tmp_path / "drive", SystemRuntime().new_id)
    with pytest.raises(ConfigError, match="is not a folder"):
        await drive.prepare()
    (tmp_path / "drive").mkdir()
    assert await drive.prepare()
    assert not await drive.prepare()
    await drive.ready(to_write=True)


async def test_a_drive_creates_once_and_leaves_no_unfinished_file(tmp_path):
    drive = DriveObjects(tmp_path, SystemRuntime().new_id)
    assert await drive.create("parts/ab/x", b"first")
    assert not await drive.create("parts/ab/x", b"second")
    assert await drive.read("parts/ab/x") == b"first"
    await drive.replace("parts/ab/x", b"third")
    assert await drive.read("parts/ab/x", offset=2) == b"ird"
    assert await drive.keys("parts/") == ["parts/ab/x"]
    assert await drive.size("parts/ab/y") is None
    assert [path.name for path in (tmp_path / "parts" / "ab").iterdir()] == ["x"]


async def test_an_archive_is_for_its_owner_alone_as_it_holds_the_state_of_the_engine(tmp_path):
    """Also one that an older version wrote open to all."""
    drive = DriveObjects(tmp_path, SystemRuntime().new_id)
    assert await drive.prepare()
    (tmp_path / "parts").mkdir(mode=0o755)
    assert await drive.create("parts/ab/x", b"first")
    await drive.replace("states/run/1", b"state")
    await drive.ready(to_write=True)
    modes = {
        path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    private = {"parts": 0o700, "parts/ab": 0o700, "parts/ab/x": 0o600, "states/run/1": 0o600}
    assert {name: modes[name] for name in private} == private
    assert not any(mode & 0o077 for mode in modes.values()), modes


async def test_row_27_a_full_drive_is_told_and_nothing_unfinished_stays(tmp_path):
    """A limit on the size of files stands for the full drive: the kernel refuses the write."""
    program = f"""
import asyncio, resource, signal
from pathlib import Path
from ringrift.data.backup.archive import DriveObjects
from ringrift.errors import StorageFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
drive = DriveObjects(Path({str(tmp_path)!r}), lambda: "id")
try:
    asyncio.run(drive.create("parts/ab/x", bytes(2000)))
except StorageFull:
    raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
