"""The guards with real processes, real files and a real data server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from ringrift.data.artifacts import ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.catalog import Cataloger
from ringrift.data.manifest.store import DAY_S
from ringrift.data.plane import DataPlane
from ringrift.data.protection.consolidation import ConsolidationDaemon, ConsolidationRules
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.inventory import scrub
from ringrift.data.protection.replication import ReplicationRepairDaemon
from ringrift.data.transfer.http.wire import SECRET_FILE
from ringrift.engine.ports import WorkState
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.jobs.shards.storage import open_shard
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from worker_orders import worker_bench

HERE = Path(__file__).parent
CONFIG = "connect_four_2p"
OLD = DeletionRules(age_s_min=0.0)


@pytest.fixture
def server(tmp_path):
    running = DataServerProcess(tmp_path / "stays", name="stays").start()
    yield running
    running.stop()


def test_a_node_that_is_told_to_end_brings_out_what_only_it_has(tmp_path, server):
    nodes = {
        "vast-1": {"ephemeral": True},
        "stays": {"ssh_host": "127.0.0.1", "data_port": server.port},
    }
    environment = {
        **os.environ,
        "RINGRIFT_DATA_DIR": str(tmp_path / "vast"),
        "RINGRIFT_NODE_ID": "vast-1",
        "RINGRIFT_NODES": json.dumps(nodes),
        "RINGRIFT_DATA_SECRET": SECRET,
    }
    child = subprocess.Popen(
        [sys.executable, str(HERE / "data_ephemeral_node.py"), "20"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        digests = json.loads(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        copies = json.loads(child.stdout.readline())
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.stdout.close()
    assert copies == {digest: ["stays", "vast-1"] for digest in digests}
    for digest in digests:
        assert (server.root / "blobs" / digest[:2] / digest).stat().st_size == 4000


def share_secret(root):
    """Let the node in *root* know what the data servers of the tests know."""
    root.mkdir()
    (root / SECRET_FILE).write_text(SECRET)
    return root


async def test_row_12_nothing_is_deleted_before_enough_nodes_verified_it(tmp_path):
    """A copy that was only sent, only claimed, or damaged on the way does not let ours go."""
    servers = [DataServerProcess(tmp_path / name, name=name).start() for name in ("b", "c")]
    try:
        async with running_node(
            "a", share_secret(tmp_path / "a"), *(each.node() for each in servers)
        ) as node:
            plane = node.plane
            games = await node.make(b"games" * 1000, games=50)
            deleter = Deleter(plane, rules=OLD)
            refused = await deleter.delete(games, why="gc", by="test")
            assert refused.verdict.reason == "0 verified copies would stay, 2 must"
            repair = ReplicationRepairDaemon(plane=plane, router=node.router, runtime=plane.runtime)
            await repair.repair_once()
            assert not (await deleter.examine(games)).allowed
            await repair.repair_once()
            assert await node.holders(games) == ["a", "b", "c"]
            done = await deleter.delete(games, why="gc", by="test")
            assert done.bytes_freed == 5000
            assert await node.holders(games) == ["b", "c"]
            for each in servers:
                assert (each.root / "blobs" / games.digest[:2] / games.digest).read_bytes() == b"games" * 1000
            gone = (await plane.tombstones())[games.digest].nodes
            assert {node: (each.state, each.by) for node, each in gone.items()} == {"a": ("deleted", "test")}
    finally:
        for each in servers:
            await asyncio.to_thread(each.stop)


async def test_row_12_a_damaged_copy_here_is_replaced_from_a_good_one(tmp_path):
    server = DataServerProcess(tmp_path / "b", name="b").start()
    try:
        async with running_node("a", share_secret(tmp_path / "a"), server.node()) as node:
            plane = node.plane
            games = await node.make(b"games" * 1000, games=50)
            repair = ReplicationRepairDaemon(plane=plane, router=node.router, runtime=plane.runtime)
            await repair.repair_once()
            path = await plane.blobs.path(games.digest)
            path.chmod(0o644)
            path.write_bytes(b"gAmes" * 1000)
            assert (await scrub(plane, older_than_s=0.0)).damaged == (games.digest,)
            assert await node.holders(games) == ["b"]
            await repair.repair_once()
            assert await node.holders(games) == ["a", "b"]
            assert await node.read(games) == b"games" * 1000
    finally:
        await asyncio.to_thread(server.stop)


class LaterRuntime(SystemRuntime):
    """The same machine, eight days later."""

    def now_s(self):
        return super().now_s() + 8 * DAY_S


@pytest.mark.timeout(400)
async def test_row_21_shards_that_a_worker_played_are_merged_by_a_worker_game_by_game(tmp_path):
    selfplay = {
        "config": CONFIG,
        "out": "{out}",
        "simulations": 4,
        "slots": 8,
        "games": 12,
        "games_per_shard": 2,
    }
    nodes = DataNodes("a", (DataNode(name="a"), DataNode(name="b")))
    async with worker_bench(tmp_path) as bench:
        runtime = LaterRuntime()
        settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "data")}).settings
        plane = DataPlane(bench.engine, settings, runtime, nodes=nodes)
        worker = bench.start_worker()
        await bench.until_state(await bench.order("selfplay", selfplay), WorkState.DONE)
        await Cataloger(plane).catalog()
        small = [each for each in await plane.manifest.artifacts() if each.kind is ArtifactKind.GAMES]
        assert len(small) == 6
        router = UnifiedEventRouter(enable_cross_process_polling=False)
        rules = ConsolidationRules(games_min=2, shards_min=2)
        daemon = ConsolidationDaemon(plane=plane, rules=rules, router=router, runtime=runtime)
        await plane.manifest.add_receipts([at_node(each, "a", runtime) for each in small])
        await daemon._run_cycle()
        queue = bench.engine.queue  # the worker may have begun, or be done
        items = [each for _, each in await queue.unended(after=0, limit=100)]
        items += [end.item for end in await queue.ended(after=0, limit=100)]
        (merging,) = {each.id for each in items if each.kind == "consolidate"}
        done = await bench.until_state(merging, WorkState.DONE)
        await daemon._run_cycle()
        # Beside it lies the sealed record of the job.
        (merged,) = [each["digest"] for each in done.result["artifacts"] if each["kind"] == "shard"]
        successors = await plane.successors()
        assert {each.successor for each in successors.values()} == {merged}
        assert set(successors) == {each.digest for each in small}
        games = [game for each in small for game in await games_in(plane, each.digest)]
        assert len(set(games)) == 12
        assert sorted(await games_in(plane, merged)) == sorted(games)
        assert all([await plane.blobs.has(each.digest) for each in small]), (
            "no second copy of the merged shard"
        )
        await bench.stop_worker(worker)
        await router.stop()


def at_node(artifact, node, runtime):
    return Receipt(digest=artifact.digest, node=node, size=artifact.size, verified_s=runtime.now_s())


async def games_in(plane, digest):
    with open_shard(await plane.blobs.path(digest)) as shard:
        return [(each.game_id, each.fingerprint, each.total_moves) for each in shard.summaries()]


async def test_row_22_games_that_are_nowhere_else_keep_a_node_from_counting_as_free(tmp_path):
    """Old receipts and unknown nodes are no proof that the games are safe."""
    others = (DataNode(name="b"), DataNode(name="c", ephemeral=True))
    async with running_node("a", tmp_path / "a", *others) as node:
        games = await node.make(b"games", games=50)
        now_s = node.plane.runtime.now_s()
        doubtful = [("b", now_s - 40 * DAY_S), ("c", now_s), ("unknown", now_s)]
        for name, verified_s in doubtful:
            receipt = Receipt(digest=games.digest, node=name, size=5, verified_s=verified_s)
            await node.plane.manifest.add_receipts([receipt])
        verdict = await Deleter(node.plane, rules=OLD).examine(games)
        assert not verdict.allowed
        for why in ("b: it was last read 40 days ago", "c: the node may vanish", "unknown: the config file"):
            assert why in verdict.reason
