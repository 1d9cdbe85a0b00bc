"""Folders and drives into which others write: no link is followed, names stay names, sizes come first."""

import io
import json
import os
import subprocess
import sys

import msgspec
import pytest

from data_transports import Store, artifact
from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.backup.archive import (
    CARD_BYTES_MAX,
    MARKER,
    ArchivedFile,
    ArchiveIndex,
    ArchiveMarker,
    ArchivePart,
    DriveObjects,
    card_key,
    encode,
)
from ringrift.data.config import DataNode, read_nodes
from ringrift.data.protection.integrity import _sealed_files
from ringrift.data.receive_main import MODULE, read_request
from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.receiving import Landing
from ringrift.data.transfer.ssh import SshLine
from ringrift.data.transfer.ssh_transports import _command
from ringrift.errors import ConfigError, Corrupt
from ringrift.foreign_files.paths import check_name, name_problem
from ringrift.runtime import SystemRuntime

DIGEST = "ab" * 32
PART = ArchivePart(sha256=DIGEST, size=5)


@pytest.fixture
def drive(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    (folder / MARKER).write_bytes(encode(ArchiveMarker()))
    return DriveObjects(folder, SystemRuntime().new_id)


def card(digest=DIGEST, **words):
    return ArchivedFile(
        artifact=Artifact(digest=digest, size=5, **words), parts=(PART,), verified_s=1.0, verified_by="a"
    )


@pytest.mark.parametrize("where", ["parts", f"parts/ab/{DIGEST}", "cards"])
async def test_a_link_on_a_drive_is_not_followed(drive, tmp_path, where):
    secret = tmp_path / "secret"
    (secret / "ab").mkdir(parents=True)
    (secret / "ab" / DIGEST).write_bytes(b"hello")
    (secret / f"{DIGEST}.json").write_bytes(encode(card()))
    link = tmp_path / "drive" / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(secret / "ab" / DIGEST if where.count("/") > 1 else secret)
    key = card_key(DIGEST) if where == "cards" else PART.key
    with pytest.raises(Corrupt, match="a link"):
        await drive.read(key)
    with pytest.raises(Corrupt, match="a link"):
        await drive.replace(key, b"other")
    assert (secret / "ab" / DIGEST).read_bytes() == b"hello"
    if where == "cards":
        with pytest.raises(Corrupt, match="a link"):
            await drive.keys("cards/")


async def test_a_key_does_not_lead_out_of_the_archive(drive, tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    with pytest.raises(Corrupt, match="way out"):
        await drive.read("../secret")


@pytest.mark.parametrize(
    ("key", "size"), [(PART.key, 5 << 20), (card_key(DIGEST), CARD_BYTES_MAX + 1), (MARKER, 1 << 40)]
)
async def test_an_object_larger_than_its_kind_is_not_read(drive, tmp_path, key, size):
    path = tmp_path / "drive" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)  # takes no disk
    with pytest.raises(Corrupt, match="are the most of such an object"):
        await drive.read(key)


async def test_a_pipe_on_a_drive_holds_nobody_up(drive, tmp_path):
    path = tmp_path / "drive" / card_key(DIGEST)
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(Corrupt, match="no plain file"):
        await drive.read(card_key(DIGEST))


async def test_a_card_under_another_name_is_refused(drive):
    index = ArchiveIndex(drive)
    await drive.create(card_key("cd" * 32), encode(card()))
    with pytest.raises(Corrupt, match="it is the card of abab"):
        await index.card("cd" * 32)


async def test_names_in_an_archive_that_are_no_digests_are_passed_over(drive):
    await drive.create("cards/nonsense.json", b"{}")
    await drive.create(card_key(DIGEST), encode(card()))
    assert [each.artifact.digest for each in await ArchiveIndex(drive).cards()] == [DIGEST]


async def test_a_card_whose_words_upset_a_terminal_is_refused(drive):
    """Whoever writes such a card can leave the hash out, as an earlier version did."""
    text = msgspec.json.encode(card(name="plain")).replace(b"plain", b"\\u001b[2J")
    await drive.create(card_key(DIGEST), text)
    with pytest.raises(Corrupt, match="holds the name"):
        await ArchiveIndex(drive).card(DIGEST)


# --- folders of files that arrive -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_does_not_land(tmp_path, kind):
    content = b"the secret of this node" * 100
    store = Store(tmp_path / "node", SystemRuntime())
    landing = Landing(store.intake("here"), verifier="test", now_s=lambda: 1000.0)
    folder, brought = landing.rsync_folder("there"), artifact(content)
    (tmp_path / "secret").write_bytes(content)
    path = folder / brought.digest
    {
        "link": lambda: path.symlink_to(tmp_path / "secret"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    landed = landing.seal(folder, {brought.digest: len(content)})
    assert landed.receipts == ()
    assert "bytes arrived" in dict(landed.failed)[brought.digest]
    assert store.read(brought) is None
    assert (tmp_path / "secret").read_bytes() == content


def test_a_file_that_has_a_second_name_is_copied_before_it_counts(tmp_path):
    content = b"x" * 1000
    store = Store(tmp_path / "node", SystemRuntime())
    landing = Landing(store.intake("here"), verifier="test", now_s=lambda: 1000.0)
    folder, brought = landing.rsync_folder("there"), artifact(content)
    (folder / brought.digest).write_bytes(content)
    os.link(folder / brought.digest, tmp_path / "kept")
    assert len(landing.seal(folder, {brought.digest: len(content)}).receipts) == 1
    (tmp_path / "kept").write_bytes(b"y" * 1000)
    assert store.read(brought) == content


def test_digests_that_are_paths_are_refused(tmp_path):
    store = Store(tmp_path / "node", SystemRuntime())
    landing = Landing(store.intake("here"), verifier="test", now_s=lambda: 1000.0)
    for name in ("../../x", "/etc/passwd", "-rf", "", "ab" * 32 + "\n"):
        with pytest.raises(ConfigError):
            landing.seal(landing.rsync_folder("there"), {name: 1})


def test_links_in_the_import_folder_stay_there(tmp_path):
    (tmp_path / "real.npz").write_bytes(b"x")
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    assert [path.name for path in _sealed_files(tmp_path)] == ["real.npz"]


@pytest.mark.parametrize(
    "request_text",
    [
        b'{"wants": [["' + DIGEST.encode() + b'", -1]]}',
        b'{"bytes_max": -1}',
        b'{"sizes": {"x": -5}}',
        b'{"sizes": {"x": 1e300}}',
        b'{"sizes": ' + b"[" * 100_000,
        b'{"sizes": {"\xff": 1}}',
        b"",
    ],
)
def test_the_receiver_answers_nonsense_with_a_refusal(tmp_path, request_text):
    command = [sys.executable, "-m", "ringrift.data.receive_main", "give", f"--data-dir={tmp_path}"]
    ended = subprocess.run(
        [*command, "--node=-a", "--peer=--help"],
        input=request_text,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    assert b"Traceback" not in ended.stderr


def test_the_receiver_is_found_where_nodes_of_other_versions_call_it(tmp_path):
    """The words of a sender of an earlier version: it is updated later than the node that it sends to."""
    words = ["-m", "ringrift.data.receive_main", "look", f"--data-dir={tmp_path}"]
    ended = subprocess.run(
        [sys.executable, *words, "--node=two", "--peer=one", "--by=base64"],
        input=b'{"sizes":{"' + DIGEST.encode() + b'":5}}',
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout).get("receipts", []) == []
    assert words[1] == MODULE, "what a newer sender calls on an older node"


def test_a_request_of_any_size_is_bounded():
    assert read_request(io.BytesIO(b"{}")).sizes == {}


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "-rf", "a/b", "..", "a\nb", "a\x1b[2J", "x" * 300, "a\u202eb", "node\n"]
)
def test_names_that_could_be_something_else_are_refused(name):
    assert name_problem(name)
    with pytest.raises(ConfigError):
        check_name("the file", name)
    with pytest.raises(ConfigError):
        read_nodes("here", {name: {}})


@pytest.mark.parametrize("field", ["ssh_host", "overlay_ip", "ssh_user", "root_path", "python", "ssh_key"])
@pytest.mark.parametrize("value", ["-oProxyCommand=id", "a\nb", "host\n"])
def test_addresses_that_ssh_would_take_for_options_are_refused(field, value):
    with pytest.raises(ConfigError):
        read_nodes("here", {"there": {field: value}})


def test_programs_get_names_after_the_end_of_the_options(tmp_path):
    line = SshLine(DataNode(name="there", ssh_host="host"), "host", ("-T",))
    command = line.command(["echo"])
    assert command[command.index("host") - 1] == "--"
    assert "--protect-args" in _command(line, Terms(), tmp_path) or "-s" in _command(line, Terms(), tmp_path)


def test_a_receipt_is_no_place_for_a_card_of_another_file(tmp_path):
    store = Store(tmp_path / "node", SystemRuntime())
    intake = store.intake("here")
    receipt = Receipt(digest=DIGEST, node="here", size=5, verified_s=1.0)
    words = json.dumps({"digest": DIGEST, "size": 5, "name": "\x1b[2J"}).encode()
    intake.cards.put([words, b"[" * 100_000, b"\xff"], [receipt], sender="there")
    assert list(intake.cards.lists()) == []
