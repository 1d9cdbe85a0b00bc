"""Small shards become large ones, and go only when the large one is safe."""

from __future__ import annotations

import io
import json
import sqlite3

import pytest
from guards_world import Crashed, World, nodes

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.protection.consolidation import KIND, ConsolidationDaemon, ConsolidationRules, plan
from ringrift.data.protection.promises import PINS
from ringrift.data.protection.records import DeletionRecords
from ringrift.data.protection.replication import ReplicationRepairDaemon
from ringrift.data.protection.retention import OpenInputs, needed_for, pin
from ringrift.data.transactions import TransactionLog
from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.errors import ConfigError
from ringrift.jobs.frame import run_job
from ringrift.jobs.shards.consolidate import CONSOLIDATE
from ringrift.jobs.shards.schema import create_tables
from ringrift.jobs.shards.storage import open_shard
from ringrift.work.job.protocol import INPUTS, OUT, JobArtifact, JobOrder, JobReport, read_order

CONFIG = "connect_four_2p"
RULES = ConsolidationRules(games_min=2, shards_min=2)


def small_shard(path, number):
    """A shard of one game of two moves."""
    db = sqlite3.connect(path)
    create_tables(db)
    name = f"game-{number}"
    facts = {"config_key": CONFIG, "games": "1", "moves": "2", "rows": "0", "content_sha256": name}
    db.executemany("INSERT INTO schema_metadata VALUES (?, ?)", facts.items())
    game = (name, CONFIG, 2, number, "run", number, 1.0, 2.0, 1, "completed", 1, "win", 2, 2, 0)
    game += ("selfplay", "gumbel", None, None, 19, f"print-{number}", "{}")
    db.execute(f"INSERT INTO games VALUES ({', '.join('?' * len(game))})", game)
    for seat in (1, 2):
        db.execute("INSERT INTO game_players VALUES (?,?,'ai','gumbel','net',NULL,NULL,0.0,1)", (name, seat))
    for move in (0, 1):
        row = (name, move, move + 1, move + 1, None, "drop", move, "drop", None, None)
        db.execute(f"INSERT INTO game_moves VALUES ({', '.join('?' * len(row))})", row)
    db.commit()
    db.close()
    return path.read_bytes()


async def worked(world, tmp_path, *, status="done", sources=None):
    """Do the ordered job as a worker would: lay out, run, take in, complete."""
    plane = world.planes["a"]
    (claim,) = await plane.queue.claim(Claimant(worker="w", kinds=frozenset({KIND})), lease_s=60.0)
    order = read_order(claim.payload)
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir(exist_ok=True)
    for name, digest in order.inputs.items():
        with await plane.blobs.open(digest) as file:
            (inputs / name).write_bytes(file.read())
    text = json.dumps(order.params).replace(INPUTS, str(inputs)).replace(OUT, str(out))
    (tmp_path / "params.json").write_text(text)
    told = io.StringIO()
    code = run_job(CONSOLIDATE, ["--params", str(tmp_path / "params.json")], out=told)
    result = json.loads(told.getvalue().splitlines()[-1])
    assert code == 0, result
    (made,) = result["artifacts"]
    with open(made["path"], "rb") as file:
        digest = await plane.blobs.put_bytes(file.read())
    artifact = JobArtifact(
        name="merged.shard.db",
        kind="shard",
        digest=digest,
        size_bytes=made["size_bytes"],
        counts=made["counts"],
    )
    fields = {"sources": result["sources"] if sources is None else sources}
    report = JobReport(
        status=status,
        worker="w",
        node="a",
        started_s=0.0,
        wall_s=1.0,
        cpu_s=1.0,
        artifacts=(artifact,),
        fields=fields,
    )
    await plane.queue.complete(claim.id, token=claim.token, result=report.as_result())
    return digest


async def world_of_shards(tmp_path, count=4, names="abc"):
    world = World(*nodes(*names))
    shards = [
        await world.make_bytes(small_shard(tmp_path / f"{n}.db", n), "a", games=1, config=CONFIG)
        for n in range(count)
    ]
    world.runtime.advance(8 * 86_400)  # nothing needs them any more
    return world, shards


def daemon_of(world):
    return ConsolidationDaemon(
        plane=world.planes["a"], rules=RULES, router=world.router, runtime=world.runtime
    )


def shard(number, games=10, config="c"):
    return Artifact(
        digest=f"{number:064x}",
        size=1,
        kind=ArtifactKind.GAMES,
        games=games,
        config=config,
        created_s=number + 1.0,
    )


def test_small_shards_of_one_config_belong_together():
    shards = [shard(n) for n in range(5)] + [shard(9, config="d")] + [shard(8, games=5_000)]
    (batch,) = plan(shards, ConsolidationRules(), nodes_able=3)
    assert (batch.config, batch.games, len(batch.shards)) == ("c", 50, 5)
    assert batch.reason == "5 shards of 50 games, each below 1000"


def test_too_few_games_or_nodes_are_not_worth_it():
    shards = [shard(n) for n in range(4)]
    assert plan(shards, ConsolidationRules(), nodes_able=3) == []
    assert plan([*shards, shard(5)], ConsolidationRules(), nodes_able=1) == []
    assert plan([*shards, shard(5)], ConsolidationRules(), nodes_able=3, resting={"c"}) == []


def test_batches_are_bounded():
    (batch,) = plan([shard(n) for n in range(300)], ConsolidationRules(), nodes_able=2)
    assert len(batch.shards) == 100
    (batch,) = plan([shard(n, games=900) for n in range(300)], ConsolidationRules(), nodes_able=2)
    assert batch.games <= 20_000
    with pytest.raises(ConfigError):
        ConsolidationRules(shards_min=1)


async def test_a_merge_from_order_to_the_end_of_its_sources(tmp_path):
    world, shards = await world_of_shards(tmp_path)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    await daemon._run_cycle()
    assert (await world.planes["a"].queue.counts())[KIND][WorkState.READY] == 1
    assert world.heard("CONSOLIDATION_STARTED") == [{"config_key": CONFIG}]
    merged = await worked(world, tmp_path)
    await daemon._run_cycle()
    (told,) = world.heard("CONSOLIDATION_COMPLETE")
    assert (told["games_merged"], told["canonical_db"]) == (4, f"blob:{merged}")
    for each in shards:
        assert await world.holders(each) == {"a"}, "the merged shard has one copy only"
    repair = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await repair._run_cycle()
    await daemon._run_cycle()
    for each in shards:
        assert await world.holders(each) == set()
        stone = await DeletionRecords(world.planes["a"].kv).tombstone(each.digest)
        assert "merged with 3 others" in stone.nodes["a"].reason
    card = await world.planes["a"].manifest.artifact(merged)
    assert (card.games, card.config) == (4, CONFIG)
    (elsewhere,) = await world.holders(card) - {"a"}
    with await world.planes[elsewhere].blobs.open(merged) as file:
        (tmp_path / "copy.shard.db").write_bytes(file.read())
    with open_shard(tmp_path / "copy.shard.db") as found:
        assert {each.game_id for each in found.summaries()} == {f"game-{n}" for n in range(4)}
    await daemon._run_cycle()
    assert (await world.planes["a"].queue.counts())[KIND] == {WorkState.DONE: 1}


async def test_row_12_nothing_goes_that_the_job_did_not_merge(tmp_path):
    """A job that claims more than it was given, or less than it merged, costs no game."""
    world, shards = await world_of_shards(tmp_path)
    stranger = await world.make(b"stranger", "a", "b", "c", games=5, config=CONFIG)
    daemon = daemon_of(world)
    daemon.rules = ConsolidationRules(games_min=2, shards_min=2, shards_max=4)
    await daemon._run_cycle()
    await worked(world, tmp_path, sources=[shards[0].digest, stranger.digest])
    await daemon._run_cycle()
    successors = await world.planes["a"].successors()
    assert set(successors) == {shards[0].digest}


async def test_shards_that_are_needed_are_not_merged(tmp_path):
    world, shards = await world_of_shards(tmp_path)
    await pin(world.planes["a"].kv, shards[0].digest, "a test")
    inputs = {f"{n}.db": each.digest for n, each in enumerate(shards[1:3])}
    order = JobOrder(config=CONFIG, params={}, inputs=inputs)
    await world.planes["a"].queue.add([NewWork(kind="validate", payload=order.as_payload())])
    await daemon_of(world)._run_cycle()
    assert KIND not in await world.planes["a"].queue.counts()


async def test_shards_that_a_transaction_keeps_are_neither_merged_nor_deleted(tmp_path):
    world, shards = await world_of_shards(tmp_path)
    plane, daemon = world.planes["a"], daemon_of(world)
    transactions = TransactionLog(kv=plane.kv, runtime=world.runtime)
    name = await transactions.begin_async("elsewhere", merge_type="by hand")
    for each in shards:
        await transactions.add_operation_async(name, "keep", f"blob:{each.digest}")
    await daemon._run_cycle()
    assert world.heard("CONSOLIDATION_STARTED") == []
    needed = await needed_for(plane, shards[0].digest, OpenInputs(plane.queue))
    assert needed == f"pinned: kept by transaction {name}", "which is what deletion asks last"
    await transactions.rollback_async(name)
    await daemon._run_cycle()
    assert world.heard("CONSOLIDATION_STARTED") == [{"config_key": CONFIG}]
    await worked(world, tmp_path)
    await daemon._run_cycle()
    done = {each.merge_type: each.state for each in await transactions.records_async()}
    assert done == {"by hand": "rolled_back", "consolidation": "committed"}
    assert await plane.kv.entries(PINS) == []


async def test_a_machine_alone_merges_nothing(tmp_path):
    world, _ = await world_of_shards(tmp_path, names="a")
    await daemon_of(world)._run_cycle()
    assert KIND not in await world.planes["a"].queue.counts()


async def test_a_crash_between_result_and_heirs_is_made_up_for(tmp_path):
    world, shards = await world_of_shards(tmp_path)
    await daemon_of(world)._run_cycle()
    await worked(world, tmp_path)
    world.planes["a"].kv.crash_after = 5
    with pytest.raises(Crashed):
        await daemon_of(world)._take_ends(world.planes["a"])
    world.planes["a"].kv.crash_after = None
    await daemon_of(world)._run_cycle()
    assert len(await world.planes["a"].successors()) == len(shards)
