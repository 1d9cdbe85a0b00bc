"""Files that a user's events name: taken in once, from named folders only, and the next stage is ordered."""

import asyncio
import hashlib
import json
import os
import sqlite3
import struct

import msgspec
import numpy as np
import pytest
from learning_story import RULES

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.data_pipeline_orchestrator import (
    PipelineConfig,
    games_of,
    wire_pipeline_events,
)
from ringrift.coordination.run_coordinator import get_loop_waker, get_open_run
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.opening import shared_engine
from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.errors import Unavailable
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.foreign_files.content_kinds import GAMES_ID
from ringrift.health.run_status import STATUS_KEY
from ringrift.learning import intake
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.results import take_in
from ringrift.learning.facts.state import OpenJob
from ringrift.learning.intake import FileIntake, refused_claims, waiting_claims
from ringrift.learning.loop import TrainingLoop
from ringrift.learning.plan.evaluation import untrained_player
from ringrift.learning.replay import replay
from ringrift.learning.requests import ALL, Pauses
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import Settings
from ringrift.testing.sample_run import idle_run
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport
from ringrift.work.limits import Pause

CONFIG = "square8_2p"
WEIGHTS = struct.pack("<Q", 2) + b"{}weights"


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

    def games(self, name, of="me"):
        path = self.files / name
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            db.executescript(f"PRAGMA application_id = {GAMES_ID}; CREATE TABLE games (of); VACUUM")
            db.execute("INSERT INTO games VALUES (?)", [of])
        db.close()
        return str(path)

    def file(self, name, content=b"something"):
        path = self.files / name
        path.write_bytes(content)
        return str(path)

    def samples(self, name="s.npz", rows=400):
        path = self.files / name
        np.savez(path, values=np.zeros((rows, 2), np.float32), features=np.zeros((rows, 3), np.float32))
        return str(path)

    def model(self, name="m.safetensors", content=WEIGHTS, sha256=None):
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
    path = site.games("games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path, success=True)
    (shard,) = site.state.shards.values()
    assert (shard.state, shard.games, shard.worker) == (ShardState.UNCHECKED, 12, "outside")
    with await site.engine.blobs.open(shard.digest) as blob:
        assert blob.read() == (site.files / "games.db").read_bytes()
    assert get_loop_waker().reasons["SELFPLAY_COMPLETE"] == 1
    assert "validate" in await site.wanted()
    assert not list((get_settings().data_dir / "intake").iterdir())
    assert await site.refusals() == []


async def test_a_file_is_taken_in_once_however_often_and_under_what_name_it_is_told(site):
    for name in ("games.db", "games.db", "the same.db"):
        await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.games(name))
    assert len(site.state.shards) == 1
    facts = site.state.facts
    await site.tell("SELFPLAY_COMPLETE", games_generated=99, db_path=site.games("games.db"))
    assert site.state.facts == facts


async def test_samples_count_by_themselves_and_a_training_is_ordered(site):
    rows = RULES.bucket.rows_first_min + 100
    path = site.samples(rows=rows)
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=10**9, games_exported=20, output_path=path)
    (samples,) = site.state.samples.values()
    assert (samples.rows, samples.games, site.state.rows) == (rows, 20, rows)
    assert samples.digest in (await site.wanted())["train"].inputs.values()


async def check(site):
    (shard,) = [each for each in site.state.shards.values() if each.name == "games.db"]
    check = {"shard": shard.digest, "games": 30, "refused": 0, "rows": 400, "reasons": {}, "quality": 0.9}
    report = JobReport(
        status="done", worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=1.0,
        artifacts=(JobArtifact(name="r", kind="report", digest="ab" * 32, size_bytes=1, counts=check),),
    )  # fmt: skip
    order = JobOrder(config=CONFIG, params={}, inputs={"games.db": shard.digest})
    take_in(site.state, OpenJob("check", "validate", order, 0, "", 0.0), report, 0.0)


@pytest.mark.parametrize("checked", ["before", "after", "never"])
@pytest.mark.parametrize(("exported", "in_all"), [(30, 30), (12, 30), (0, 30), (50, 50)])
async def test_games_count_once_when_their_samples_are_told_too(site, exported, in_all, checked):
    await site.tell("SELFPLAY_COMPLETE", games_generated=30, db_path=site.games("games.db"))
    if checked == "before":
        await check(site)
    await site.tell("NPZ_EXPORT_COMPLETE", games_exported=exported, output_path=site.samples(rows=400))
    if checked == "after":
        await check(site)
    assert games_of(site.state) == in_all
    assert sum(shard.games for shard in site.state.shards.values()) == in_all
    assert site.state.rows == (800 if checked != "never" and not exported else 400)


@pytest.mark.parametrize("checked", [True, False])
async def test_games_that_are_told_after_the_samples_made_of_them_count_once(site, checked):
    games, samples = site.games("games.db"), site.samples(rows=400)
    os.utime(games, (1000.0, 1000.0))
    await site.tell("NPZ_EXPORT_COMPLETE", games_exported=30, output_path=samples)
    await site.tell("SELFPLAY_COMPLETE", games_generated=30, db_path=games)
    assert "validate" in await site.wanted(), "the rules are never optional"
    assert replay(CONFIG, await read_facts(site.engine.kv, CONFIG), RULES) == []
    if checked:
        await check(site)
    assert games_of(site.state) == sum(shard.games for shard in site.state.shards.values()) == 30
    assert site.state.rows == 400


@pytest.mark.parametrize(
    ("written_s", "games"), [(2000.0, 30), (500.0, 31)], ids=["played since", "too many"]
)
async def test_games_that_cannot_be_in_the_samples_told_before_are_new_ones(site, written_s, games):
    path, samples = site.games("games.db"), site.samples(rows=400)
    os.utime(path, (written_s, written_s))
    os.utime(samples, (1000.0, 1000.0))
    await site.tell("NPZ_EXPORT_COMPLETE", games_exported=30, output_path=samples)
    await site.tell("SELFPLAY_COMPLETE", games_generated=games, db_path=path)
    assert games_of(site.state) == 30 + games


async def test_a_model_of_a_user_is_judged_like_any_other(site):
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    path = site.model()
    told = {"success": True, "model_path": path, "samples_trained": 5000, "epochs": 2, "val_loss": 0.5}
    await site.tell("TRAINING_COMPLETED", **told)
    (model,) = site.state.models.values()
    assert (model.digest, model.rows_seen) == (hashlib.sha256(WEIGHTS).hexdigest(), 5000)
    assert "evaluate" in await site.wanted()
    assert replay(CONFIG, await read_facts(site.engine.kv, CONFIG), RULES) == []


async def test_a_model_of_a_trainer_with_a_slot_is_known_by_the_slot(site):
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    told = {"success": True, "model_path": site.model(), "job_id": f"{CONFIG}_1_2_3"}
    await site.tell("TRAINING_COMPLETED", **told)
    (training,) = site.state.trainings
    assert (training.slot, training.error, dict(site.state.trained)) == (
        f"{CONFIG}_1_2_3",
        "",
        {"completed": 1},
    )


@pytest.mark.parametrize(
    ("event", "payload", "why"),
    [
        ("SELFPLAY_COMPLETE", {"games_generated": 1000}, "it names no file (db_path)"),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}/none.db"}, "there is no file"),
        ("SELFPLAY_COMPLETE", {"games_generated": 0, "db_path": "{files}/a.db"}, "games_generated is 0"),
        (
            "SELFPLAY_COMPLETE",
            {"games_generated": 5, "db_path": "{files}/../secret"},
            "it lies in none of the folders",
        ),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "{files}/link"}, "it lies in none of"),
        ("SELFPLAY_COMPLETE", {"games_generated": 5, "db_path": "mine/a.db"}, "by its full path"),
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
            {"samples_exported": 1, "games_exported": 1, "output_path": "{files}/other"},
            "no file of samples",
        ),
        ("TRAINING_COMPLETED", {"success": True, "model_path": "{files}/m"}, "no samples of the config"),
    ],
)
async def test_what_cannot_be_taken_in_is_refused_with_the_reason_and_changes_nothing(
    site, tmp_path, monkeypatch, event, payload, why
):
    monkeypatch.setattr(intake, "ORDER_S", 0.0)
    site.games("a.db")
    site.file("empty", b"")
    site.file("other")
    site.file("m", WEIGHTS)
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
    path = site.games("a.db")
    told = {"games_generated": 5, "db_path": str(path)}
    await site.tell("SELFPLAY_COMPLETE", **told, duration_seconds=float("inf"))
    assert len(await site.refusals()) == 1
    await site.tell("SELFPLAY_COMPLETE", **told, duration_seconds=2.0)
    assert len(site.state.shards) == 1


async def test_a_process_without_the_loop_leaves_it_to_the_one_that_has_it(site):
    get_open_run().loop = None
    path = site.games("games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    (reason,) = await site.refusals()
    assert "no run is open that could take it in" in reason
    seen = idle_run(at_s=system_runtime().now_s(), state="running")
    await site.engine.kv.put(STATUS_KEY, msgspec.json.encode(seen))
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    assert len(await site.refusals()) == 1


async def test_what_comes_out_of_the_log_before_the_loop_is_open_waits_for_it(site):
    get_open_run().loop, site.pipeline.config = None, PipelineConfig(auto_trigger=True)
    payload = {"config_key": CONFIG, "games_generated": 12, "db_path": site.games("games.db")}
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
    get = site.engine.queue.get

    async def killed_when_it_is_done(item_id):
        item = await get(item_id)
        if item is not None and item.state is WorkState.DONE:
            raise SystemError("killed here")
        return item

    monkeypatch.setattr(site.engine.queue, "get", killed_when_it_is_done)
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.games("games.db"))
    monkeypatch.undo()
    assert not site.state.shards
    again = Controller(site.engine, system_runtime(), RULES, announcer=Silent())
    await again.open([CONFIG])
    assert [shard.games for shard in again.state(CONFIG).shards.values()] == [12]
    assert not again.state(CONFIG).open_jobs


# --- what waits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [ALL, CONFIG])
async def test_a_file_told_during_a_pause_waits_quietly_and_is_taken_in_when_it_goes_on(site, paused):
    pauses = Pauses(site.engine.kv)
    await pauses.set(paused, Pause(reason="for a look"))
    event = await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.games("games.db"))
    files = FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    )
    await files.take_waiting()
    assert not site.state.shards
    assert (await site.refusals(), site.router.get_stats()["handler_failures"]) == ([], 0)
    (waits,) = await waiting_claims(site.engine.kv)
    assert (waits.event_id, waits.reason) == (event.event_id, f"{CONFIG} is paused (for a look)")
    await pauses.end([paused])
    await files.take_waiting()
    assert [shard.games for shard in site.state.shards.values()] == [12]
    assert await waiting_claims(site.engine.kv) == []
    assert "validate" in await site.wanted()


async def test_the_running_loop_takes_in_what_waited(site):
    await Pauses(site.engine.kv).set(ALL, Pause())
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.games("games.db"))
    await Pauses(site.engine.kv).end_all()
    loop = TrainingLoop(site.engine, system_runtime(), site.router, get_settings(), run=get_open_run())
    async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
        running = group.create_task(loop.run([CONFIG]))
        while await waiting_claims(site.engine.kv):
            await asyncio.sleep(0.01)
        running.cancel()
    assert [shard.games for shard in loop.controller.state(CONFIG).shards.values()] == [12]


async def test_what_waited_is_refused_with_the_reason_if_it_is_gone_by_then(site):
    await Pauses(site.engine.kv).set(ALL, Pause())
    path = site.games("games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    await Pauses(site.engine.kv).end_all()
    (site.files / "games.db").unlink()
    await FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    ).take_waiting()
    (reason,) = await site.refusals()
    assert f"there is no file {path}" in reason
    assert await waiting_claims(site.engine.kv) == []


def id_of(path):
    return f"outside-selfplay-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


async def left_over(site, path):
    """An item as a process leaves it that dies between claiming and completing it."""
    job_id = id_of(path)
    item = NewWork(id=job_id, kind="selfplay", payload={}, attempts_max=1, idempotency_key=job_id)
    await site.engine.queue.add([item])
    (claim,) = await site.engine.queue.claim(Claimant(worker="outside"), lease_s=60.0)
    return claim


async def test_a_file_whose_item_of_the_queue_is_dead_is_taken_in_when_it_is_told_again(site):
    path = site.games("games.db")
    claim = await left_over(site, site.files / "games.db")
    await site.engine.queue.fail(claim.id, token=claim.token, error="the disk was full", final=True)
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    assert [shard.games for shard in site.state.shards.values()] == [12]
    found = await site.engine.queue.get(claim.id)
    assert found.state is WorkState.DONE


async def test_a_file_whose_item_was_cancelled_is_taken_in_when_it_is_told_again(site):
    path = site.games("games.db")
    claim = await left_over(site, site.files / "games.db")
    await site.engine.queue.cancel(claim.id, reason="by mistake")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    assert [shard.games for shard in site.state.shards.values()] == [12]


async def test_a_file_that_another_process_is_taking_in_waits_for_its_end(site):
    path = site.games("games.db")
    claim = await left_over(site, site.files / "games.db")
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=path)
    files = FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    )
    await files.take_waiting()
    assert not site.state.shards
    await site.engine.queue.fail(claim.id, token=claim.token, error="it died", final=True)
    await files.take_waiting()
    assert len(site.state.shards) == 1


async def test_the_same_file_told_while_it_is_taken_in_counts_once(site):
    event = RouterEvent(
        "SELFPLAY_COMPLETE",
        {"config_key": CONFIG, "games_generated": 12, "db_path": site.games("games.db")},
        source="a user",
    )
    intake = FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    )
    found = await asyncio.gather(intake.take_in(event), intake.take_in(event))
    assert sorted(found) == [False, True]


async def test_an_engine_that_is_away_is_not_taken_for_a_file_that_waits(site, monkeypatch):
    async def away(*_args, **_options):
        raise Unavailable("the store is away")

    monkeypatch.setattr(site.engine.queue, "add", away)
    await site.tell("SELFPLAY_COMPLETE", games_generated=12, db_path=site.games("games.db"))
    assert await waiting_claims(site.engine.kv) == []
    assert site.router.get_stats()["handler_failures"] == 1


# --- what a file is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_programs", [(), ("evaluate", "validate")])
async def test_a_file_is_what_its_content_says_whatever_is_said_of_it(site, own_programs):
    site.loop.rules = msgspec.structs.replace(RULES, own_programs=own_programs)
    await site.tell("NPZ_EXPORT_COMPLETE", output_path=site.samples("known.npz"), games_exported=1)
    games, samples, model = site.games("g.db"), site.samples("games.db", rows=7), site.model("m.safetensors")
    card = {"sha256": hashlib.sha256((site.files / "g.db").read_bytes()).hexdigest()}
    site.file("g.json", json.dumps(card).encode())
    facts = site.state.facts
    await site.tell("SELFPLAY_COMPLETE", games_generated=5, db_path=samples + ".npz")
    await site.tell("SELFPLAY_COMPLETE", games_generated=5, db_path=model)
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=5, games_exported=1, output_path=games)
    await site.tell("TRAINING_COMPLETED", success=True, model_path=games)
    assert site.state.facts == facts
    found = {reason.partition(", and ")[2] for reason in await site.refusals()}
    assert found == {
        "games.db.npz is a file of samples, not a game shard",
        "m.safetensors is a file of weights, not a game shard",
        "g.db is a game shard, not a file of samples",
        "g.db is a game shard, not a file of weights",
    }


async def test_a_file_that_the_run_has_is_refused_as_anything_else(site):
    as_games = {"event": "SELFPLAY_COMPLETE", "field": "db_path", "games_generated": 5}
    as_samples = {"event": "NPZ_EXPORT_COMPLETE", "field": "output_path", "games_exported": 5}
    as_model = {"event": "TRAINING_COMPLETED", "field": "model_path", "success": True}
    as_results = {"event": "EVALUATION_COMPLETED", "field": "results_path", "model_id": MODEL}
    files = [
        (site.games("games.db"), as_games, "games.db is games"),
        (site.samples(), as_samples, "s.npz is samples"),
        (site.model(), as_model, "m.safetensors is a model"),
    ]

    async def claim(path, how):
        told = dict(how)
        await site.tell(told.pop("event"), **{told.pop("field"): path}, **told)

    for path, rightly, _ in files:
        await claim(path, rightly)
    await evaluated(site, results(site, match("untrained", 3, 1)))
    files.append((str(site.files / "r.json"), as_results, "r.json is results of games"))
    facts = site.state.facts
    for path, rightly, known in files:
        await claim(path, rightly)
        assert await site.refusals() == [], "told again, it is no other claim"
        for wrong in (as_games, as_samples, as_model, as_results):
            if wrong is not rightly:
                await claim(path, wrong)
        reasons = await site.refusals()
        assert len(reasons) == 3
        assert all(f"{known}, which the run has" in reason for reason in reasons), reasons
        for entry in await site.engine.kv.entries(intake.PREFIX):
            await site.engine.kv.delete(entry.key)
    assert site.state.facts == facts


async def test_games_in_a_form_of_its_own_are_for_a_run_that_checks_them_with_a_program_of_its_own(site):
    told = {"games_generated": 5, "db_path": site.file("games.json", b'{"games": []}')}
    await site.tell("SELFPLAY_COMPLETE", **told)
    (reason,) = await site.refusals()
    assert "games.json is nothing that a run knows, not a game shard" in reason
    site.loop.rules = msgspec.structs.replace(RULES, own_programs=("validate",))
    await site.tell("SELFPLAY_COMPLETE", **told, duration_seconds=1.0)
    assert len(site.state.shards) == 1


# --- results of matches -----------------------------------------------------------------------------------

MODEL = hashlib.sha256(WEIGHTS).hexdigest()
UNTRAINED = untrained_player(RULES)


def match(opponent, wins, losses, **changes):
    games = wins + losses
    told = {"opponent": opponent, "games": games, "wins": wins, "draws": 0, "losses": losses}
    return {**told, "score": wins / games, **changes}


def results(site, *matches, name="r.json", **changes):
    told = {"config": CONFIG, "model_sha256": MODEL, "matches": matches, **changes}
    return site.file(name, json.dumps(told).encode())


async def trained(site):
    """A model of the user's own, which waits for its verdict."""
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    await site.tell("TRAINING_COMPLETED", success=True, model_path=site.model(), samples_trained=5000)
    assert await site.refusals() == []


async def evaluated(site, path, **told):
    await site.tell("EVALUATION_COMPLETED", model_id=MODEL, results_path=path, **told)


async def test_results_of_a_users_own_games_promote_by_the_test_of_the_loop(site):
    await trained(site)
    await evaluated(site, results(site, match("untrained", 60, 4), match("random", 64, 0)))
    assert await site.refusals() == []
    assert [(each.first, each.second, each.games) for each in site.state.matches] == [
        (MODEL, UNTRAINED, 64),
        (MODEL, "random", 64),
    ]
    await site.loop.reconcile()
    assert site.state.champion == MODEL
    (change,) = site.state.promotions
    assert "first model: stronger against the untrained net" in change.reason
    assert replay(CONFIG, await read_facts(site.engine.kv, CONFIG), RULES) == []


async def test_too_few_games_of_a_user_are_evidence_and_no_verdict(site):
    await trained(site)
    await evaluated(site, results(site, match("untrained", 3, 1)))
    await site.loop.reconcile()
    assert site.state.champion is None
    gate = (await site.wanted())["evaluate"].params["gates"][0]
    assert (gate["opponent"], gate["prior"]["games"]) == (UNTRAINED, 4)


async def test_a_file_of_results_counts_once_however_often_it_is_told(site):
    await trained(site)
    for name in ("r.json", "r.json", "the same.json"):
        await evaluated(site, results(site, match("untrained", 3, 1), name=name))
    assert len(site.state.matches) == 1
    assert await site.refusals() == []
    await evaluated(site, results(site, match("untrained", 4, 0)))
    assert [each.games for each in site.state.matches] == [4, 4], "other games are other evidence"


async def test_a_second_model_meets_the_champion_by_its_hash(site):
    await trained(site)
    await evaluated(site, results(site, match("untrained", 60, 4), match("random", 64, 0)))
    await site.loop.reconcile()
    weights = WEIGHTS + b" of the second"
    second = hashlib.sha256(weights).hexdigest()
    await site.tell("TRAINING_COMPLETED", success=True, model_path=site.model("m2.safetensors", weights))
    lost = results(site, match(MODEL, 2, 62), model_sha256=second)
    await site.tell("EVALUATION_COMPLETED", model_id=second, results_path=lost)
    assert await site.refusals() == []
    await site.loop.reconcile()
    assert (site.state.champion, str(site.state.models[second].state)) == (MODEL, "rejected")


@pytest.mark.parametrize(
    ("matches", "changes", "why"),
    [
        ([match("somebody", 3, 1)], {}, "its opponent 'somebody' is not known; there are random"),
        ([match("random", 3, 1)], {"model_sha256": "0" * 64}, "the run knows no model 000000000000"),
        ([match("random", 3, 1)], {"config": "hex8_2p"}, "its games are of hex8_2p, not of square8_2p"),
        ([match("random", 3, 1, players=3, places=[4, 0, 0])], {}, "games of 3 players"),
        ([match("random", 3, 1, score=0.99)], {}, "a score of 0.99 for 3.0 points of 4 games"),
        ([match("random", 3, 1, games=9)], {}, "3 + 0 + 1 results of 9 games"),
        ([match("random", 3, 1, pairs=[2, 0, 0, 0, 0])], {}, "pairs [2, 0, 0, 0, 0] for 3.0 points"),
        ([match("random", 3, 1), match("random", 4, 0)], {}, "are told twice"),
        ([match("random", 3, -1)], {}, "cannot be read"),
        ([], {}, "cannot be read"),
    ],
)
async def test_results_that_cannot_be_true_are_refused_and_change_nothing(
    site, monkeypatch, matches, changes, why
):
    monkeypatch.setattr(intake, "ORDER_S", 0.0)
    await trained(site)
    facts = site.state.facts
    await evaluated(site, results(site, *matches, **changes))
    (reason,) = await site.refusals()
    assert reason.startswith("it claims results of games, and ")
    assert why in reason
    assert (site.state.facts, site.state.matches) == (facts, [])


async def test_an_evaluation_without_a_file_is_refused_and_shown_nowhere(site):
    await trained(site)
    await site.tell("EVALUATION_COMPLETED", model_id=MODEL, win_rate=1.0, elo=2900.125, games_played=500)
    (reason,) = await site.refusals()
    assert reason == "it claims results of games, and it names no file (results_path)"
    await site.loop.reconcile()
    assert (site.state.champion, site.state.matches) == (None, [])
    assert "2900.125" not in repr(site.pipeline.get_status())


async def test_files_whose_events_overtook_each_other_are_taken_in_in_their_order(site):
    """Each type of event is delivered by itself, so that of a quick job may come before its turn."""
    told = results(site, match("untrained", 60, 4), match("random", 64, 0))
    await evaluated(site, told)
    await site.tell("TRAINING_COMPLETED", success=True, model_path=site.model(), samples_trained=5000)
    assert (site.state.models, site.state.matches, await site.refusals()) == ({}, [], [])
    assert len(await waiting_claims(site.engine.kv)) == 2
    await site.tell("NPZ_EXPORT_COMPLETE", samples_exported=1, games_exported=1, output_path=site.samples())
    files = FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    )
    for _ in range(2):
        await files.take_waiting()
    await site.loop.reconcile()
    assert site.state.champion == MODEL
    assert await waiting_claims(site.engine.kv) == []


async def test_a_file_whose_predecessor_never_comes_is_refused_when_its_time_is_over(site, monkeypatch):
    await site.tell("TRAINING_COMPLETED", success=True, model_path=site.model())
    files = FileIntake(
        site.loop, site.engine, get_settings(), system_runtime(), wake=get_loop_waker().wake_for
    )
    await files.take_waiting()
    assert (await site.refusals(), len(await waiting_claims(site.engine.kv))) == ([], 1)
    monkeypatch.setattr(intake, "ORDER_S", 0.0)
    await files.take_waiting()
    (reason,) = await site.refusals()
    assert "no samples of the config are known" in reason
    assert await waiting_claims(site.engine.kv) == []
