"""`ringrift data`: what exists and where, reading it again, moving it, letting it go."""

import hashlib
import json
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_folder import in_engine

from data_http import SECRET, DataServerThread
from ringrift.cli.data.plane import WatchedTransfers, bars, size_text
from ringrift.cli.main import app
from ringrift.coordination.coordinator_config import get_settings
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode
from ringrift.data.files import prepare_database_for_transfer
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.protection.promise_store import PromiseStore
from ringrift.data.protection.retention import pin
from ringrift.data.transfer.contract import Moved, Terms, TransferProgress
from ringrift.data.transfer.receiving import MetadataFolder, packed_cards
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

DAY_S = 86_400.0


@pytest.fixture
def drive(tmp_path, monkeypatch):
    """This node is `a`; `b` and `c` are others, and `usb` is a drive."""
    path = tmp_path / "usb"
    path.mkdir()
    nodes = {"a": {}, "b": {}, "c": {}, "usb": {"drive_path": str(path)}}
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps(nodes))
    monkeypatch.setenv("RINGRIFT_NODE_ID", "a")
    return path


@pytest.fixture
def neighbors(drive, tmp_path, monkeypatch):
    """The data servers of `b` and `c`, whose disks have nothing yet."""
    servers = {name: DataServerThread(tmp_path / name, name).start() for name in ("b", "c")}
    nodes = {"a": {}, **{name: server.entry for name, server in servers.items()}}
    nodes["usb"] = {"drive_path": str(drive)}
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps(nodes))
    monkeypatch.setenv("RINGRIFT_DATA_SECRET", SECRET)
    yield servers
    for server in servers.values():
        server.stop()


def give(servers, artifact):
    """Put the file on their disks, too."""
    for server in servers:
        place = server.root / "blobs" / artifact.digest[:2] / artifact.digest
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(blob(artifact).read_bytes())


def ringrift(*arguments, code=0):
    process_scope().clear()  # every command is a process of its own
    done = CliRunner().invoke(app, ["data", *arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done


def answer(*arguments, code=0):
    return json.loads(ringrift(*arguments, "--json", code=code).stdout)


def make(text, *holders, age_s=30 * DAY_S, **card):
    """An artifact with that content here, and receipts of *holders*."""

    async def write(engine):
        # As a run does before its first file: a record that is made beside files is not the first one.
        PromiseStore(get_settings().blob_dir, system_runtime()).close()
        now_s = system_runtime().now_s()
        digest = await engine.blobs.put_bytes(text.encode())
        given = {
            "kind": ArtifactKind.GAMES,
            "config": "hex8_2p",
            "created_s": now_s - age_s,
            "games": 5,
            **card,
        }
        artifact = Artifact(digest=digest, size=len(text), name=f"{text}.shard.db", **given)
        manifest = ManifestStore(engine.kv)
        await manifest.register([artifact])
        receipts = [Receipt(digest=digest, node=node, size=len(text), verified_s=now_s) for node in holders]
        await manifest.add_receipts(receipts)
        return artifact

    return in_engine(write)


def blob(artifact):
    return get_settings().blob_dir / artifact.digest[:2] / artifact.digest


def test_without_a_run_there_is_nothing_to_look_at(drive):
    assert "there is no run" in ringrift("ls", code=2).stderr


def test_ls_lists_artifacts_with_their_copies(drive):
    games = make("games", "a", "b")
    make("model", "a", kind=ArtifactKind.MODEL, games=0, config="square8_2p")
    rows = answer("ls")
    assert {row["name"]: (row["copies"], row["nodes"]) for row in rows} == {
        "games.shard.db": (2, ["a", "b"]),
        "model.shard.db": (1, ["a"]),
    }
    assert [row["digest"] for row in answer("ls", "--type", "games")] == [games.digest]
    assert [row["digest"] for row in answer("ls", "--node", "b")] == [games.digest]
    assert answer("ls", "--config", "none") == []
    shown = ringrift("ls").stdout
    assert "2 artifacts, 5 games, 10 B" in shown
    assert "no node is called 'zz'" in ringrift("ls", "--node", "zz", code=2).stderr


def test_show_says_what_holds_a_file_and_why_it_may_go(neighbors):
    games = make("games", "a", "b", "c")
    give(neighbors.values(), games)
    found = answer("show", games.digest[:8])
    assert [each["node"] for each in found["copies"]] == ["a", "b", "c"]
    assert (found["may_delete"], found["why"]) == (True, "2 nodes looked now and keep it: b, c")
    neighbors["c"].stop()
    assert "c does not answer" in answer("show", games.digest)["why"]
    neighbors.pop("c")
    in_engine(lambda engine: pin(engine.kv, games.digest, "for a paper"))
    found = answer("show", games.digest)
    assert (found["may_delete"], found["held_for"]) == (False, "pinned: for a paper")
    assert "may its copy here go? no" in ringrift("show", games.digest).stdout
    assert "no artifact is called" in ringrift("show", "ffff", code=2).stderr
    assert "at least 4 characters" in ringrift("show", "f", code=2).stderr


def test_verify_reads_every_byte_and_says_what_is_damaged(drive):
    good, bad = make("good", "a"), make("bad!", "a")
    assert answer("verify")["scrubbed"]["verified"] == 2
    blob(bad).chmod(0o644)
    blob(bad).write_bytes(b"bAd!")
    assert "4 B read" in ringrift("verify", good.digest).stdout
    found = answer("verify", code=1)
    assert found["scrubbed"] == {"verified": 1, "bytes": 8, "damaged": [bad.digest], "missing": []}
    assert not blob(bad).exists()
    assert [row["copies"] for row in answer("ls") if row["digest"] == bad.digest] == [0]


def test_replicas_counts_copies_and_plans_repairs(neighbors):
    three = make("two", "a", "b", "c")
    give(neighbors.values(), three)
    single = make("one", "a")
    found = answer("replicas")
    assert (found["by_copies"], found["unknown"]) == ({"1": 1, "3": 1}, {})
    assert [(each["digest"], each["source"], each["priority"]) for each in found["repairs"]] == [
        (single.digest, "a", "high")
    ]
    shown = ringrift("replicas").stdout
    assert "Copies to make" in shown
    assert "1 below the minimum" in shown


def test_replicas_counts_what_was_seen_now_and_not_what_was_said_once(neighbors):
    files = [make(text, "a", "b", "c") for text in ("one", "two", "three")]
    for each in files:
        give(neighbors.values(), each)
    assert answer("replicas")["by_copies"] == {"3": 3}
    (neighbors["b"].root / "blobs" / files[0].digest[:2] / files[0].digest).unlink()
    assert answer("replicas")["by_copies"] == {"2": 1, "3": 2}
    neighbors.pop("c").stop()
    found = answer("replicas")
    assert found["by_copies"] == {"1": 1, "2": 2}
    assert found["unknown"].keys() == {"c"}
    assert found["verdict"] != "healthy"
    assert "c does not answer, so its copies are not known" in ringrift("replicas").stdout
    for each in files:
        blob(each).unlink()
    found = answer("replicas")
    assert found["by_copies"] == {"0": 1, "1": 2}
    assert "all 3 files of this node are gone" in found["here"]


def test_gc_dry_run_deletes_nothing_and_gc_only_what_is_safe(neighbors):
    safe, single = make("safe", "a", "b", "c"), make("single", "a", "b")
    give(neighbors.values(), safe)
    found = answer("gc", "--dry-run")
    assert (found["files"], found["bytes"]) == (1, 4)
    assert {row["name"]: row["goes"] for row in found["artifacts"]} == {
        "safe.shard.db": True,
        "single.shard.db": False,
    }
    assert blob(safe).exists()
    assert "would be freed" in ringrift("gc", "--dry-run").stdout
    shown = ringrift("gc").stdout
    assert "2 nodes looked now and keep it: b, c" in shown
    assert "1 verified copies would stay, 2 must" in shown
    assert not blob(safe).exists()
    assert blob(single).exists()
    told = answer("show", safe.digest)
    assert told["tombstone"]["nodes"]["a"]["by"] == "ringrift data gc"
    assert "asked for by a person" in told["decisions"][-1]["reason"]
    assert answer("gc")["files"] == 0
    assert ringrift("gc", "--min-copies", "0", code=2)


def test_backup_to_a_drive_and_restore_from_it(drive):
    games = make("games", "a")
    assert "no run" not in ringrift("backup", "usb", code=2).stderr, "an empty drive is not an archive yet"
    found = answer("backup", "usb", "--prepare")
    assert (found["files"], found["games"], found["failed"]) == (1, 5, {})
    assert answer("backup")["files"] == 0
    assert [row["nodes"] for row in answer("ls")] == [["a", "usb"]]
    blob(games).unlink()
    ringrift("verify", code=1)
    assert answer("restore", "--digest", games.digest[:10])["files"] == 1
    assert blob(games).read_bytes() == b"games"
    assert "; 1 file there already" in ringrift("restore").stdout
    assert "0 files, 0 games, 0 B backed up to usb; 1 file there already" in ringrift("backup").stdout
    assert "no archive is called 'b'" in ringrift("backup", "b", code=2).stderr


def test_games_are_counted_in_shards_only(drive):
    """Samples and reports are made of games that their shards hold: backup said 65,399 of 28,620."""
    make("games", "a", games=5)
    make("samples", "a", games=5, kind=ArtifactKind.SAMPLES)
    make("report", "a", games=5, kind=ArtifactKind.REPORT)
    assert "3 artifacts, 5 games" in ringrift("ls").stdout
    assert "3 files, 5 games" in ringrift("backup", "--prepare").stdout


def test_restore_fills_a_folder_that_nothing_ran_in(drive, tmp_path, monkeypatch):
    games = make("games", "a")
    ringrift("backup", "usb", "--prepare")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    assert "1 file, 5 games" in ringrift("restore").stdout
    assert blob(games).read_bytes() == b"games"
    assert [(row["digest"], row["nodes"]) for row in answer("ls")] == [(games.digest, ["a", "usb"])]


def test_a_run_comes_back_into_an_empty_folder_with_its_state(drive, tmp_path, monkeypatch):
    lived_in = str(get_settings().data_dir)
    games = make("games", "a")
    in_engine(lambda engine: engine.kv.put("learning/something", b"that files do not say"))
    assert answer("backup", "usb", "--prepare", "--no-memory")["state"] is None
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    assert "has no state of a run" in ringrift("restore", "--memory", code=2).stderr
    assert not get_settings().coordinator_db.exists()
    monkeypatch.setenv("RINGRIFT_DATA_DIR", lived_in)
    assert answer("backup")["state"]["node"] == "a"
    assert "has a run" in ringrift("restore", "--memory", code=2).stderr
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    done = ringrift("restore").stdout
    assert "1 file, 5 games, 5 B restored from usb" in done
    assert "`ringrift run` goes on from there" in done
    assert blob(games).read_bytes() == b"games"
    assert in_engine(lambda engine: engine.kv.get("learning/something")).value == b"that files do not say"
    assert [(row["digest"], row["nodes"]) for row in answer("ls")] == [(games.digest, ["a", "usb"])]
    with closing(sqlite3.connect(get_settings().coordinator_db)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",), "the engine needs it"
    assert stat.S_IMODE(get_settings().coordinator_db.stat().st_mode) == 0o600
    restores = in_engine(lambda engine: engine.kv.entries("run/restores/"))
    assert [json.loads(each.value)["archive"] for each in restores] == ["usb"]


def test_a_restore_takes_the_run_and_node_that_was_asked_for(drive, tmp_path, monkeypatch):
    """It took the newest of any node, in silence."""
    for name in ("a", "b"):
        monkeypatch.setenv("RINGRIFT_NODE_ID", name)
        monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / name))
        process_scope().clear()
        make(f"games of {name}", name)
        in_engine(lambda engine, name=name: engine.kv.put("whose", name.encode()))
        ringrift("backup", "usb", *(["--prepare"] if name == "a" else []))
    monkeypatch.delenv("RINGRIFT_NODE_ID")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    told = ringrift("restore", code=2).stderr
    assert "choose one with --node, --run or --at" in told
    assert "of node a" in told
    assert "of node b" in told
    assert "no state of a run that fits; there are: run" in ringrift("restore", "--node", "c", code=2).stderr
    assert not get_settings().coordinator_db.exists()
    found = answer("restore", "--node", "a")
    assert (found["state"]["node"], found["files"]) == ("a", 1)
    assert in_engine(lambda engine: engine.kv.get("whose")).value == b"a"
    here = {system_runtime().hostname, "usb"}
    assert [set(row["nodes"]) for row in answer("ls")] == [here], "the lost machine has no copies"
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("RINGRIFT_NODE_ID", "b")
    assert answer("restore")["state"]["node"] == "b", "a machine with a name asks for its own"


def test_a_restore_can_go_back_and_replaces_a_run_only_when_told(drive, monkeypatch):
    times = []
    for number in range(3):
        make(f"games {number}", "a")
        in_engine(lambda engine, number=number: engine.kv.put("number", str(number).encode()))
        ringrift("backup", "usb", *(["--prepare"] if not number else []))
        times.append(system_runtime().now_s())
    assert "has a run" in ringrift("restore", "--at", "now", code=2).stderr
    at = datetime.fromtimestamp(times[1], UTC).isoformat()
    done = answer("restore", "--at", at, "--replace")
    assert in_engine(lambda engine: engine.kv.get("number")).value == b"1"
    assert Path(done["moved_aside"]).exists()
    assert "--at is 'then'" in ringrift("restore", "--at", "then", code=2).stderr


def test_a_restore_of_a_damaged_archive_leaves_nothing_behind(drive, tmp_path, monkeypatch):
    games = make("games", "a")
    ringrift("backup", "usb", "--prepare")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    [card] = (drive / "cards").iterdir()
    card.rename(tmp_path / "card")
    told = ringrift("restore", code=2).stderr
    assert "does not have 1 files that the state names" in told
    assert games.digest[:12] in told
    assert not get_settings().coordinator_db.exists()
    (tmp_path / "card").rename(card)
    [part] = drive.glob("states/*/*/*/part-00000")
    content = part.read_bytes()
    part.write_bytes(content[:-3] + b"xyz")
    assert "its bytes are not those that were stored" in ringrift("restore", code=2).stderr
    assert not list(tmp_path.glob("fresh/coordination/*"))
    part.write_bytes(content)
    assert answer("restore")["files"] == 1


def test_a_state_of_an_earlier_version_is_still_restored(drive, tmp_path, monkeypatch):
    make("games", "a")
    in_engine(lambda engine: engine.kv.put("whose", b"mine"))
    settings = get_settings()
    copy = prepare_database_for_transfer(settings.coordinator_db, tmp_path)

    async def register(engine):
        digest = await engine.blobs.put(copy)
        card = Artifact(
            digest=digest,
            size=copy.stat().st_size,
            kind=ArtifactKind.SNAPSHOT,
            name="run-memory.db",
            node="a",
            created_s=5.0,
        )
        manifest = ManifestStore(engine.kv)
        await manifest.register([card])
        await manifest.add_receipts([Receipt(digest=digest, node="a", size=card.size, verified_s=5.0)])

    in_engine(register)
    ringrift("backup", "usb", "--prepare", "--no-memory")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    assert answer("restore")["state"]["run"] == ""
    assert in_engine(lambda engine: engine.kv.get("whose")).value == b"mine"


def test_check_reads_a_whole_archive_and_tells_what_is_damaged(drive):
    good, bad, gone = make("good", "a"), make("bad!", "a"), make("gone", "a")
    ringrift("backup", "usb", "--prepare")
    found = answer("check", "usb")
    assert (found["files"], found["games"], found["states"], found["damaged"]) == (3, 15, 1, [])
    part = drive / "parts" / bad.digest[:2] / bad.digest
    part.write_bytes(b"BAD!")
    (drive / "cards" / f"{gone.digest}.json").unlink()
    found = answer("check", code=1)
    damaged = {each["digest"]: each for each in found["damaged"]}
    assert (found["files"], set(damaged)) == (1, {bad.digest, gone.digest})
    assert "has wrong bytes" in damaged[bad.digest]["why"]
    assert "of node a" in damaged[bad.digest]["needed_by"][0]
    assert "data check usb --mend" in damaged[bad.digest]["advice"]
    assert "is missing" in damaged[gone.digest]["why"]
    rows = {row["digest"]: row["nodes"] for row in answer("ls")}
    assert rows == {good.digest: ["a", "usb"], bad.digest: ["a"], gone.digest: ["a"]}, "it counts no more"
    shown = ringrift("check", code=1).stdout
    assert "needed by: run" in shown
    assert "1 file with 5 games and 1 states good" in shown
    assert [each["mended"] for each in answer("check", "--mend", code=1)["damaged"]].count(True) == 1
    ringrift("backup")
    assert answer("check")["damaged"] == []
    [state] = sorted(drive.glob("states/*/*/*/part-00000"))[:1]
    state.write_bytes(b"nothing")
    found = answer("check", code=1)
    assert [each["what"] for each in found["damaged"]] == ["state"]


def test_a_folder_that_only_took_in_files_of_others_can_be_looked_at(drive):
    digests = []
    for content in (b"what another node brought over ssh", b"more of it"):
        digests.append(hashlib.sha256(content).hexdigest())
        place = get_settings().blob_dir / digests[-1][:2] / digests[-1]
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        card = Artifact(digest=digests[-1], size=len(content), name="brought")
        receipt = Receipt(digest=digests[-1], node="a", size=len(content), verified_s=1.0, verifier="put")
        box = MetadataFolder(BlobFolder(get_settings().blob_dir, system_runtime().new_id))
        if content != b"more of it":
            assert "files of a run are in" in ringrift("ls", code=2).stderr, "one that nobody brought"
        box.put(packed_cards([card]), [receipt], sender="b")
    assert "2 files good (44 B read)" in ringrift("verify").stdout, (
        "also of kinds that nobody needs to know here"
    )
    place.write_bytes(b"LESS of it")
    shown = ringrift("verify", code=1).stdout
    assert "1 file good" in shown
    assert f"damaged, set aside: {digests[-1]}" in shown
    assert not place.exists()


def test_ls_has_a_line_for_each_artifact_whatever_its_name(drive, monkeypatch):
    names = [f"{'long-name-of-a-shard-' * 3}{n}" for n in range(3)]
    made = [make(name, "a", "b") for name in names]
    for width, named in ((80, False), (160, True)):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = ringrift("ls").stdout.splitlines()
        rows = [line for line in lines if any(each.digest[:10] in line for each in made)]
        assert len(rows) == len(made)
        assert all(
            "hex8_2p" in row and "2 a, b" in row and "\N{HORIZONTAL ELLIPSIS}" not in row[:60] for row in rows
        )
        assert all(("long-name" in row) is named for row in rows)
        assert len(lines) == len(made) + 5, "title, head and sum"
        assert max(len(row.rstrip()) for row in rows) <= width


def test_young_files_stay_for_one_reason_whatever_their_ages(drive):
    for age_s in (10.0, 200.0, 3_000.0):
        make(f"{age_s}", "a", "b", "c", age_s=age_s, kind=ArtifactKind.REPORT)
    reasons = {row["why"] for row in answer("gc", "--dry-run")["artifacts"]}
    assert reasons == {"it is younger than 1 day"}


def test_repair_says_why_copies_could_not_be_made(drive):
    assert "No artifact is known yet" in after_a_start("replicas")
    make("games", "a")
    make("more games", "a")
    assert "not repaired: 2 files: " in ringrift("replicas", "--repair").stdout
    shown = ringrift("replicas").stdout
    assert "2 files had a try that failed in the last 10 minutes" in shown
    assert answer("replicas")["resting"] == 2


def after_a_start(*arguments):
    in_engine(lambda engine: engine.queue.counts())
    return ringrift(*arguments).stdout


def test_sync_tells_each_node_once_and_that_nothing_was_missing(drive, monkeypatch):
    make("games", "a", "b")
    done = ringrift("sync", "b", "c", "--timeout", "20", code=1)
    shown = done.stdout
    assert (shown.count("c: "), done.stderr) == (1, ""), shown
    assert "nothing was missing: b" in shown
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps({"a": {}}))
    assert "this is the only node" in ringrift("sync").stdout


def test_sync_says_what_could_not_be_reached(drive):
    make("games", "a")
    found = answer("sync", "b", "--timeout", "20", code=1)
    assert found["success"] is False
    assert found["errors"]
    assert "Not complete" in ringrift("sync", "b", "--timeout", "20", code=1).stdout
    assert "zz: no node is called that" in ringrift("sync", "zz", code=1).stdout


def test_sync_names_every_file_that_did_not_go_once(drive):
    make("first", "a")
    ringrift("backup", "--prepare")
    gone = [make(text, "a") for text in ("second", "third")]
    for artifact in gone:
        blob(artifact).unlink()
    lines = ringrift("sync", "usb", code=1).stdout.splitlines()
    for artifact in gone:
        about = [line for line in lines if artifact.digest[:12] in line]
        assert about == [f"usb: {artifact.digest[:12]}: this node does not have it"]


def test_a_machine_that_is_none_of_the_nodes_is_told_so(drive, monkeypatch):
    make("games", "a")
    assert ringrift("sync", "c", "--timeout", "20", code=1).stderr == ""
    monkeypatch.setenv("RINGRIFT_NODE_ID", "laptop")
    assert "'laptop', which is no node of the config file" in ringrift("ls").stderr
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps({"usb": {"drive_path": str(drive)}}))
    assert ringrift("ls").stderr == "", "one machine and an archive need no names"


async def test_bars_follow_a_transfer():
    class Slow:
        async def send(self, node, artifacts, *, terms):
            await terms.on_progress(
                TransferProgress(bytes_done=3, bytes_total=10, files_done=0, files_total=1)
            )
            return Moved()

    heard = []

    async def hear(told):
        heard.append(told.bytes_done)

    artifact = Artifact(digest="a" * 64, size=10)
    with bars(quiet=True) as progress:
        await WatchedTransfers(Slow(), progress).send(
            DataNode(name="b"), [artifact], terms=Terms(on_progress=hear)
        )
        (task,) = progress.tasks
    assert (task.description, task.completed, task.total) == ("to b", 3, 10)
    assert heard == [3]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_read_well(size, text):
    assert size_text(size) == text


def test_a_pinned_file_stays_until_it_is_unpinned(neighbors):
    games = make("games", "a", "b", "c")
    other = make("more", "a", "b", "c")
    for each in (games, other):
        give(neighbors.values(), each)
    assert "no artifact is called 'ffff" in ringrift("pin", games.digest[:8], "f" * 64, code=2).stderr
    assert answer("show", games.digest)["held_for"] == "", "all or none"
    assert "pinned" in ringrift("pin", games.digest[:8], "--why", "for a paper").stdout
    assert answer("show", games.digest)["held_for"] == "pinned: for a paper"
    ringrift("gc")
    assert blob(games).exists()
    assert not blob(other).exists()
    assert answer("unpin", games.digest) == [{"digest": games.digest, "unpinned": True}]
    assert "was not pinned" in ringrift("unpin", games.digest).stdout
    ringrift("gc")
    assert not blob(games).exists()
    told = " ".join(ringrift("pin", games.digest).stdout.split())
    assert "pinned; this node has no copy, others (b, c) keep theirs if it answers" in told
