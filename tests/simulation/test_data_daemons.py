"""What the daemons that move, count, check and drop files do, and that without one nobody does it."""

import sqlite3
from contextlib import closing

import msgspec
from guards_world import nodes
from lever_world import HOUR_S, lived

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.protection.records import Quarantine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.work.job.protocol import JobOrder

CONFIG = "hex8_2p"
DAY_S = 24 * HOUR_S


def test_games_made_here_go_to_a_neighbor_only_while_auto_sync_runs():
    async def body(machine):
        async def cause(number):
            games = await machine.make(f"games {number}".encode(), "a", config=CONFIG, games=1_000, node="a")
            return lambda: is_at(machine, "b", games)

        await machine.shows_lever("auto_sync", cause)

    lived(body, *nodes("b"))


async def is_at(machine, node, artifact):
    return node in await machine.holders(artifact)


def test_data_goes_to_where_a_training_runs_only_while_training_node_watcher_runs():
    async def body(machine):
        async def cause(number):
            about = {"kind": ArtifactKind.SAMPLES, "config": CONFIG}
            samples = await machine.make(f"samples {number}".encode(), "a", **about)
            order = JobOrder(config=CONFIG, params={}, inputs={"samples.npz": samples.digest})
            queue = machine.here.queue
            await queue.add([NewWork(kind="train", payload=order.as_payload())])
            claimant = Claimant(worker="b-1", kinds=frozenset({"train"}))
            assert await queue.claim(claimant, lease_s=DAY_S)
            return lambda: is_at(machine, "b", samples)

        await machine.shows_lever("training_node_watcher", cause)

    lived(body, *nodes("b"))


def test_the_records_of_this_node_are_sealed_for_others_only_while_elo_sync_runs():
    async def body(machine):
        path = machine.here.settings.data_dir / "records" / "ratings.db"
        path.parent.mkdir()

        async def snapshots():
            view = await machine.here.view()
            return len(view.of_kinds({ArtifactKind.SNAPSHOT}))

        async def cause(number):
            before = await snapshots()
            with closing(sqlite3.connect(path)) as records, records:
                records.execute("CREATE TABLE IF NOT EXISTS matches (match_id TEXT PRIMARY KEY)")
                records.execute("INSERT INTO matches VALUES (?)", [f"match {number}"])

            async def is_sealed():
                return await snapshots() > before

            return is_sealed

        await machine.shows_lever("elo_sync", cause)

    lived(body)


def test_old_games_are_asked_to_be_renewed_only_while_high_quality_sync_runs():
    async def body(machine):
        await machine.make(b"old", "a", config=CONFIG, games=1_000)

        async def cause(_number):
            before = len(machine.heard("SYNC_TRIGGERED"))
            return lambda: more(machine, "SYNC_TRIGGERED", before)

        await machine.shows_lever("high_quality_sync", cause)

    lived(body)


async def more(machine, event, before):
    return len(machine.heard(event)) > before


def test_champions_go_to_every_node_only_while_model_distribution_runs():
    async def body(machine):
        async def cause(number):
            about = {"config": CONFIG, "created_s": machine.runtime.now_s(), "node": "a"}
            model = await machine.make(f"model {number}".encode(), "a", kind=ArtifactKind.MODEL, **about)
            pointer = {"config": CONFIG, "model": model.digest, "card": "", "change": number}
            await machine.here.kv.put(f"learning/champion/{CONFIG}", msgspec.json.encode(pointer))
            return lambda: is_at(machine, "b", model)

        await machine.shows_lever("model_distribution", cause)

    lived(body, *nodes("b"))


def test_a_single_copy_is_told_only_while_replication_monitor_runs():
    async def body(machine):
        async def cause(number):
            before = len(machine.heard("REPLICATION_ALERT"))
            await machine.make(f"games {number}".encode(), "a", config=CONFIG, games=3)
            return lambda: more(machine, "REPLICATION_ALERT", before)

        await machine.shows_lever("replication_monitor", cause)

    lived(body, *nodes("b"))


def test_a_second_copy_is_made_only_while_replication_repair_runs():
    async def body(machine):
        async def cause(number):
            games = await machine.make(f"games {number}".encode(), "a", config=CONFIG, games=3)
            return lambda: is_at(machine, "b", games)

        await machine.shows_lever("replication_repair", cause)

    lived(body, *nodes("b"))


def test_damage_is_found_only_while_integrity_check_runs():
    async def body(machine):
        async def cause(number):
            games = await machine.make(f"games {number}".encode(), "a", config=CONFIG)
            machine.here.blobs._state.content[games.digest] = b"damaged"

            async def is_set_aside():
                return not await machine.here.blobs.has(games.digest)

            return is_set_aside

        await machine.shows_lever("integrity_check", cause)

    lived(body)


def test_a_file_that_nobody_noted_is_counted_only_while_orphan_detection_runs():
    async def body(machine):
        async def cause(number):
            content = f"games {number}".encode()
            games = await machine.make(content, config=CONFIG)
            await machine.here.blobs.put_bytes(content)

            async def is_noted():
                return bool(await machine.here.manifest.copies(games.digest))

            return is_noted

        await machine.shows_lever("orphan_detection", cause)

    lived(body)


def test_poor_games_are_marked_only_while_data_cleanup_runs():
    async def body(machine):
        async def cause(number):
            games = await machine.make(f"games {number}".encode(), "a", config=CONFIG, games=9, quality=0.2)

            async def is_marked():
                return games.digest in await Quarantine(machine.here).marked()

            return is_marked

        await machine.shows_lever("data_cleanup", cause)

    lived(body)


def test_small_shards_are_merged_only_while_data_consolidation_runs():
    async def body(machine):
        async def cause(number):
            config = f"{CONFIG}{number}"
            about = {"config": config, "games": 20, "created_s": machine.runtime.now_s() - 30 * DAY_S}
            for shard in range(4):
                await machine.make(f"games {number} {shard}".encode(), "a", **about)

            async def is_ordered():
                ready = await machine.here.queue.ready(limit=100)
                return config in {each.group for each in ready if each.kind == "consolidate"}

            return is_ordered

        await machine.shows_lever("data_consolidation", cause)

    lived(body, *nodes("b"))


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    "auto_sync": test_games_made_here_go_to_a_neighbor_only_while_auto_sync_runs,
    "data_cleanup": test_poor_games_are_marked_only_while_data_cleanup_runs,
    "data_consolidation": test_small_shards_are_merged_only_while_data_consolidation_runs,
    "elo_sync": test_the_records_of_this_node_are_sealed_for_others_only_while_elo_sync_runs,
    "high_quality_sync": test_old_games_are_asked_to_be_renewed_only_while_high_quality_sync_runs,
    "integrity_check": test_damage_is_found_only_while_integrity_check_runs,
    "model_distribution": test_champions_go_to_every_node_only_while_model_distribution_runs,
    "orphan_detection": test_a_file_that_nobody_noted_is_counted_only_while_orphan_detection_runs,
    "replication_monitor": test_a_single_copy_is_told_only_while_replication_monitor_runs,
    "replication_repair": test_a_second_copy_is_made_only_while_replication_repair_runs,
    "training_node_watcher": test_data_goes_to_where_a_training_runs_only_while_training_node_watcher_runs,
}
