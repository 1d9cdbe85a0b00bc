"""Files that a user's events name: taken in once, from named folders only, and the next stage is ordered."""

import asyncio
import hashlib
import json

import msgspec
import numpy as np
import pytest
from learning_story import RULES

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.opening import shared_engine
from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.progress_view import RUN_STATUS_KEY, RunSeen
from ringrift.learning.announcing import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.intake import refused_claims
from ringrift.learning.ledger import read_facts
from ringrift.learning.pipeline import PipelineConfig, wire_pipeline_events
from ringrift.learning.records import ShardState
from ringrift.learning.replay import replay
from ringrift.learning.signals_source import get_open_run
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import Settings, get_settings
from ringrift.work.scheduling_bell import get_bell

CONFIG = "square8_2p"


class Site:
    """A run whose jobs nobody does, and a folder into which a user puts files."""

    def __init__(self, folder, monkeypatch):
        self.files = folder / "mine"
        self.files.mkdir()
        monkeypatch.setenv("RINGRIFT_INTAKE_FOLDERS", str(self.files))
        process_scope().drop(Settings)
        self.engine = memory_engine(system_runtime(), MemoryStore())
        shared_engine().put(self.engine)
        self.router = UnifiedEventRouter(enable_cross_process_polling=False)
        self.pipeline = wire_pipeline_events(router=self.router)

    async def begin(self):
        self.loop = Controller(self.engine, system_runtime(), RULES, announcer=Silent())
        await self.loop.open([CONFIG])
        get_open_run().loop = self.loop
        return self

    @property
    def state(self):
        return self.loop.state(CONFIG)

    async def tell(self, event, **payload):
        return await self.router.publish(event, {"config_key": CONFIG, **payload}, "a user")

    async def refusals(self):
        return [claim.reason for claim in await refused_claims(self.engine.kv)]

    def file(self, name, content=b"games of mine"):
        path = self.files / name
        path.write_bytes(content)
        return str(path)

    def samples(self, name="s.npz", rows=400):
        path = self.files / name
        np.savez(path, values=np.zeros((rows, 2), np.float32), features=np.zeros((rows, 3), np.float32))
        return str(path)

    def model(self, name="m.safetensors", content=b"weights", sha256=None):
        path = self.file(name, content)
        card = {"sha256": sha256 or hashlib.sha256(content).hexdigest()}
        self.file(name.replace(".safetensors", ".json"), json.dumps(card).encode())
        return path

    async def wanted(self):
        """What is ordered now, or wanted as soon as somebody can do it."""
        await self.loop.reconcile()
        orders = {job.stage: job.order for job in self.state.open_jobs.values()}
        return {**{each.stage: each.order for each in self.loop.plans[CONFIG].wanted}, **orders}


@pytest.fixture
async def site(tmp_path, monkeypatch):
    site = await Site(tmp_path, monkeypatch).begin()
    yield site
    get_open_run().loop = None
    await site.engine.close()
    process_scope().drop(Settings)


async def test_games_of_a_user_are_sealed_and_their_check_is_ordered(site):
    path = site.file("games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path, success=True)
    (shard,) = site.state.shards.values()
    assert (shard.state, shard.games, shard.worker) == (ShardState.UNCHECKED, 12, "outside")
    with await site.engine.blobs.open(shard.digest) as blob:
        assert blob.read() == b"games of mine"
    assert get_bell().rung["SELFPLAY_COMPLETE"] == 1
    assert "validate" in await site.wanted()
    assert not list((get_settings().data_dir / "intake").iterdir())
    assert await site.refusals() == []


async def test_a_file_is_taken_in_once_however_often_and_under_what_name_it_is_told(site):
    for name in ("games.db", "games.db", "the same.db"):
        await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.file(name))
    assert len(site.state.shards) == 1
    facts = site.state.facts
    await site.tell("SELFPLAY_COMPLETE", games_generated=99, db_path=site.file("games.db"))
    assert site.state.facts == facts


async def test_samples_count_by_themselves_and_a_training_is_ordered(site):
    rows = RULES.bucket.rows_first_min + 100
    path = site.samples(rows=rows)
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=10**9, games_exported=20, output_path=path)
    (samples,) = site.state.samples.values()
    assert (samples.rows, samples.games, site.state.rows) == (rows, 20, rows)
    assert samples.digest in (await site.wanted())["train"].inputs.values()


async def test_a_model_of_a_user_is_judged_like_any_other(site):
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    path = site.model()
    told = {"success": True, "model_path": path, "samples_trained": 5000, "epochs": 2, "val_loss": 0.5}
    await site.tell("TRAINING_COMPLETED", **told)
    (model,) = site.state.models.values()
    assert (model.digest, model.rows_seen) == (hashlib.sha256(b"weights").hexdigest(), 5000)
    assert "evaluate" in await site.wanted()
    assert replay(CONFIG, await read_facts(site.engine.kv, CONFIG), RULES) == []


@pytest.mark.parametrize(
    ("event", "payload", "why"),
    [
        ("SELFPLAY_COMPLETE", {"games_generated": 1000}, "it names no file (db_path)"),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}/none.db"}, "there is no file"),
        ("SELFPLAY_COMPLETE", {"games_generated": 0, "db_path": "{files}/a.db"}, "games_generated is 0"),
        (
            "SELFPLAY_COMPLETE",
            {"games_generated": 5, "db_path": "{files}/../secret"},
            "does not lie in a folder",
        ),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}/link"}, "does not lie in"),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}/empty"}, "is empty"),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}"}, "it is no plain file"),
        (
            "SELFPLAY_COMPLETE",
            {"games_generated": 5, "db_path": "{files}/a.db", "duration_seconds": float("inf")},
            "duration_seconds is inf",
        ),
        ("SELFPLAY_COMPLETE", {"games_generated": 2**62, "db_path": "{files}/a.db"}, "games_generated is"),
        (
            "NPZ_EXPORT_COMPLETE",
            {"samples_exported": 1, "games_exported": 1, "output_path": "{files}/a.db"},
            "no file of samples",
        ),
        ("TRAINING_COMPLETED", {"success": True, "model_path": "{files}/a.db"}, "no samples of the config"),
    ],
)
async def test_what_cannot_be_taken_in_is_refused_with_the_reason_and_changes_nothing(
    site, tmp_path, event, payload, why
):
    site.file("a.db")
    site.file("empty", b"")
    (tmp_path / "secret").write_text("not for events")
    (site.files / "link").symlink_to(tmp_path / "secret")
    facts = site.state.facts
    filled = {
        name: str(each).format(files=site.files) if isinstance(each, str) else each
        for name, each in payload.items()
    }
    await site.tell(event, **filled)
    (reason,) = await site.refusals()
    assert why in reason
    assert site.state.facts == facts
    assert site.pipeline.heard[event] == 1
    folder = get_settings().data_dir / "intake"
    assert not folder.exists() or not list(folder.iterdir())


async def test_a_file_that_was_refused_for_its_event_is_taken_in_with_a_right_one(site):
    path = site.file("a.db")
    told = {"games_generated": 5, "db_path": str(path)}
    await site.tell("SELFPLAY_COMPLETE", **told, duration_seconds=float("inf"))
    assert len(await site.refusals()) == 1
    await site.tell("SELFPLAY_COMPLETE", **told, duration_seconds=2.0)
    assert len(site.state.shards) == 1


async def test_a_process_without_the_loop_leaves_it_to_the_one_that_has_it(site):
    get_open_run().loop = None
    path = site.file("games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    (reason,) = await site.refusals()
    assert "no run is open that could take it in" in reason
    seen = RunSeen(at_s=system_runtime().now_s(), state="running")
    await site.engine.kv.put(RUN_STATUS_KEY, msgspec.json.encode(seen))
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    assert len(await site.refusals()) == 1


async def test_what_comes_out_of_the_log_before_the_loop_is_open_waits_for_it(site):
    get_open_run().loop, site.pipeline.config = None, PipelineConfig(auto_trigger=True)
    payload = {"config_key": CONFIG, "games_generated": 12, "db_path": site.file("games.db")}
    event = RouterEvent("SELFPLAY_COMPLETE", payload, origin=EventSource.CROSS_PROCESS, source="a user")
    async with asyncio.TaskGroup() as group:
        group.create_task(site.router.publish_event(event))
        await asyncio.sleep(0.1)
        assert not site.state.shards
        get_open_run().loop = site.loop
    assert len(site.state.shards) == 1


async def test_a_card_of_another_model_is_refused(site):
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    await site.tell("TRAINING_COMPLETED", success=True, model_path=site.model(sha256="0" * 64))
    (reason,) = await site.refusals()
    assert "m.json is of another file" in reason
    assert not site.state.models


async def test_a_crash_between_the_two_facts_is_made_good_by_the_next_start(site, monkeypatch):
    async def killed(*_args, **_options):
        raise SystemError("killed here")

    monkeypatch.setattr(site.engine.queue, "get", killed)
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.file("games.db"))
    monkeypatch.undo()
    assert not site.state.shards
    again = Controller(site.engine, system_runtime(), RULES, announcer=Silent())
    await again.open([CONFIG])
    assert [shard.games for shard in again.state(CONFIG).shards.values()] == [12]
    assert not again.state(CONFIG).open_jobs
