"""Nodes as docs/data.md sets them up: an engine, a data folder and a data server each."""

import asyncio
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from data_cluster import running_node
from data_http import SECRET, DataServerThread
from held_port import HeldPort
from ringrift.cli.main import app
from ringrift.data.artifacts import Receipt
from ringrift.data.manifest.store import DAY_S
from ringrift.process import process_scope

NAMES = ("a", "b", "c")
DEADLINE_S = 90.0
FILES = 3
SCRIPT = Path(__file__).parents[2] / "scripts" / "data_nodes.py"
pytestmark = pytest.mark.timeout(300)


class Nodes:
    """Their folders, what their config files say, and what is really on their disks."""

    def __init__(self, root):
        self.root, self.runs, self.digests = root, [], []
        self.held = {name: HeldPort() for name in NAMES}
        self.ports = {name: held.number for name, held in self.held.items()}
        self.servers = []

    def folder(self, name):
        return self.root / name

    async def make(self):
        """Three files, which all three nodes have and were told of."""
        contents = [f"game {number} ".encode() * 5000 for number in range(FILES)]
        self.digests = [hashlib.sha256(content).hexdigest() for content in contents]
        for name in NAMES:
            async with running_node(name, self.folder(name)) as node:
                now_s = node.plane.runtime.now_s()
                for content in contents:
                    card = await node.make(content, games=10, created_s=now_s - 30 * DAY_S)
                    receipts = [
                        Receipt(digest=card.digest, node=each, size=card.size, verified_s=now_s)
                        for each in NAMES
                    ]
                    await node.plane.manifest.add_receipts(receipts)

    def serve(self, *names):
        for name in names:
            server = DataServerThread(self.folder(name), name).start()
            self.servers.append(server)
            self.ports[name] = server.entry["data_port"]

    def environment(self, name, **more):
        entries = {each: {"ssh_host": "127.0.0.1", "data_port": port} for each, port in self.ports.items()}
        return {
            "RINGRIFT_DATA_DIR": str(self.folder(name)),
            "RINGRIFT_NODE_ID": name,
            "RINGRIFT_NODES": json.dumps(entries),
            "RINGRIFT_DATA_SECRET": SECRET,
            "RINGRIFT_HEALTH_PORT": "0",
            "NO_COLOR": "1",
            **more,
        }

    def command(self, name, *words):
        process_scope().clear()  # every command is a process of its own
        done = CliRunner().invoke(app, ["data", *words, "--json"], env=self.environment(name))
        assert done.exit_code == 0, done.output + done.stderr
        return json.loads(done.stdout)

    def run(self, name, percent):
        """`ringrift run` on a disk that is so full."""
        more = {"TEST_DISK_PERCENT": str(percent), "RINGRIFT_DATA_PORT": str(self.ports[name])}
        with (self.root / f"{name}.log").open("ab") as log:
            words = ["run", "--plain", "--no-open", "--profile", "training_node", "--workers", "1"]
            command = [sys.executable, "-m", "ringrift.cli", *words]
            environment = {**os.environ, **self.environment(name, **more)}
            self.runs.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            )

    def copies(self):
        """Who really has each file, by its hash."""
        found = {}
        for digest in self.digests:
            places = {name: self.folder(name) / "blobs" / digest[:2] / digest for name in NAMES}
            there = {name: path for name, path in places.items() if path.exists()}
            assert all(hashlib.sha256(path.read_bytes()).hexdigest() == digest for path in there.values())
            found[digest] = set(there)
        return found

    def close(self):
        for run in self.runs:
            children = psutil.Process(run.pid).children(recursive=True)
            for each in (run, *children):  # how a run ends is not the question here
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            run.wait(DEADLINE_S)
        for server in self.servers:
            server.stop()
        for held in self.held.values():
            held.give_back()


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    asyncio.run(made.make())
    yield made
    made.close()


def test_gc_on_one_node_after_the_other_leaves_the_copies_that_must_stay(nodes):
    """And what was deleted and came back counts at once on the node that has it."""
    nodes.serve(*NAMES)
    gone = {name: nodes.command(name, "gc", "--min-age-days", "0") for name in NAMES}
    assert [gone[name]["files"] for name in NAMES] == [FILES, 0, 0]
    assert set(map(frozenset, nodes.copies().values())) == {frozenset("bc")}
    assert "a: it does not have it" in gone["b"]["artifacts"][0]["why"]
    assert nodes.command("b", "replicas")["by_copies"] == {"2": FILES}
    nodes.command("b", "replicas", "--repair")
    assert set(map(frozenset, nodes.copies().values())) == {frozenset("abc")}
    for name in NAMES:
        assert nodes.command(name, "replicas")["by_copies"] == {"3": FILES}, name


def test_a_pin_on_a_node_without_a_copy_keeps_the_file_everywhere(nodes):
    kept = nodes.digests[0]
    (nodes.folder("c") / "blobs" / kept[:2] / kept).unlink()
    nodes.serve(*NAMES)
    nodes.command("c", "pin", kept, "--why", "for a paper")
    gone = nodes.command("a", "gc", "--min-age-days", "0", "--min-copies", "1")
    assert gone["files"] == FILES - 1
    (why,) = {each["why"] for each in gone["artifacts"] if each["digest"] == kept}
    assert why == "it is pinned on c: for a paper"
    assert nodes.copies()[kept] == {"a", "b"}


def test_gc_asks_and_believes_no_receipt_of_a_node_that_lost_its_disk_or_does_not_answer(nodes):
    shutil.rmtree(nodes.folder("b") / "blobs")
    nodes.serve("b")
    kept = nodes.command("a", "gc", "--min-age-days", "0", "--min-copies", "1")
    assert kept["files"] == 0
    why = kept["artifacts"][0]["why"]
    assert "b: it does not have it" in why
    assert "c does not answer" in why
    assert all("a" in holders for holders in nodes.copies().values())


def test_runs_on_full_disks_do_not_delete_because_of_each_other(nodes):
    for name in NAMES:
        nodes.run(name, 77)
    end_s = time.monotonic() + DEADLINE_S
    looked = set()
    while len(looked) < len(NAMES) and time.monotonic() < end_s:
        for name in NAMES:
            shown = nodes.command(name, "show", nodes.digests[0])
            if any(each["part"] == "deletion" for each in shown["decisions"]):
                looked.add(name)
    assert looked == set(NAMES), "each looked for something to delete"
    copies = nodes.copies()
    assert all(len(holders) >= 2 for holders in copies.values()), copies


def test_the_observer_judges_the_deletion_of_a_file_that_was_damaged_and_brought_back(tmp_path):
    script = runpy.run_path(str(SCRIPT))
    node = script["Node"](tmp_path, "a", 1, "", None)
    observer = script["Observer"]({"a": node}, tmp_path / "enough")
    digest = hashlib.sha256(b"games").hexdigest()
    path = node.folder / "blobs" / digest[:2] / digest
    path.parent.mkdir(parents=True)
    path.write_bytes(b"games")
    observer.look()
    path.write_bytes(b"gamEs")
    observer.damaged("a", digest, set())
    path.rename(tmp_path / "set aside")
    path.write_bytes(b"games")
    observer.look()
    path.unlink()
    observer.look()
    node._held.close()
    assert len(observer.violations) == 1, "nobody else has it"


@pytest.mark.timeout(900)  # a limit of each step of the script adds up to more than this module's
def test_nodes_under_faults_keep_every_copy_that_must_stay_and_know_what_they_have():
    """The short form of `make nodes`."""
    command = [sys.executable, str(SCRIPT), "--seconds", "3", "--seed", "3", "--nodes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    found = json.loads(done.stdout) if done.stdout else {}
    assert found.get("violations") == [], done.stderr
    assert found["lost"] == [], done.stderr
    assert found["deleted"] > 0, done.stderr
    assert done.returncode == 0, done.stderr
    assert sorted(each["node"] for each in found["compared"]) == list(NAMES)
