"""`ringrift data backup` and `restore` of a run whose node has another name now, or whose records are few."""

import json

import msgspec
import pytest
from click.testing import CliRunner
from run_folder import in_engine, write_models
from test_cli_data import answer, blob, make, ringrift

from ringrift.cli.main import app
from ringrift.coordination.coordinator_config import get_settings
from ringrift.data.artifacts import ArtifactKind
from ringrift.engine.lock_files import LockFile
from ringrift.learning.controller import job_id
from ringrift.process import process_scope
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport, SealedJob

CONFIG = "hex8_2p"
NEVER_HERE = "5" * 64  # samples that `write_models` only tells of


@pytest.fixture
def usb(tmp_path, monkeypatch):
    path = tmp_path / "usb"
    path.mkdir()
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps({"usb": {"drive_path": str(path)}}))
    monkeypatch.setenv("RINGRIFT_NODE_ID", "before")
    return path


def blobs():
    return {path.name for path in get_settings().blob_dir.rglob("*") if len(path.name) == 64}


def test_a_run_whose_node_was_renamed_comes_back_whole(usb, tmp_path, monkeypatch):
    """Nothing came, not even the champion: only receipts of the new name counted."""
    models = write_models(CONFIG)
    make("games", "before")
    for text in ("weights 1", "weights 2"):
        make(text, "before", kind=ArtifactKind.MODEL, games=0)
    here = blobs()
    monkeypatch.setenv("RINGRIFT_NODE_ID", "after")
    found = answer("backup", "usb", "--prepare")
    assert (found["files"], found["games"], found["already"]) == (len(here), 5, 0)
    assert found["state"]["games"] == 5
    found = answer("backup", "usb")
    assert (found["files"], found["already"]) == (0, len(here))
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    found = answer("restore", "usb", code=1)
    assert found["files"] == len(here)
    assert blobs() == here
    assert models[0] in here
    assert found["missing"] == [NEVER_HERE], "the facts name it, and nobody has it"


def test_a_restore_says_what_is_missing_and_may_be_told_that_it_is_known(usb, tmp_path, monkeypatch):
    write_models(CONFIG)
    ringrift("backup", "usb", "--prepare")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    shown = ringrift("restore", "usb", code=1).stdout
    assert "Missing of the files that it names: 1" in shown
    assert f"missing: {NEVER_HERE}" in shown
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "other"))
    assert answer("restore", "usb", "--incomplete")["missing"] == [NEVER_HERE]


def test_files_that_other_nodes_or_runs_have_do_not_come(usb, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_NODES", json.dumps({"before": {}, "b": {}, "usb": {"drive_path": str(usb)}}))
    own, others = make("own", "before"), make("of b", "before", "b")
    ringrift("backup", "usb", "--prepare")
    blob(others).unlink()
    ringrift("verify", code=1)  # its receipt goes
    ringrift("backup", "usb")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    found = answer("restore", "usb")
    assert (found["files"], found["missing"]) == (1, [])
    assert blobs() == {own.digest}


def seal_games(number):
    """A file of games and the record of the job that brought it; the digest of the record."""

    async def write(engine):
        games = await engine.blobs.put_bytes(b"games %d" % number)
        made = JobArtifact(name="", kind="shard", digest=games, size_bytes=7, counts={"games": 5, "rows": 50})
        report = JobReport(
            status="done", worker="w", node="n", started_s=1.0, wall_s=1.0, cpu_s=1.0, artifacts=(made,)
        )
        name, order = job_id(CONFIG, "selfplay", number), JobOrder(config=CONFIG, params={})
        job = SealedJob(item_id=name, kind="selfplay", order=order, report=report, ended_s=float(number))
        return await engine.blobs.put_bytes(msgspec.json.encode(job))

    return in_engine(write)


def lose_database():
    for path in get_settings().coordinator_db.parent.glob("coordinator.db*"):
        if path.is_file():
            path.unlink()


def rebuild(*options):
    process_scope().clear()
    done = CliRunner().invoke(app, ["rebuild", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_that_was_rebuilt_can_be_lost_and_rebuilt_again(usb, tmp_path, monkeypatch):
    """Records of jobs were in no backup: the second rebuild found games without a job."""
    for number in (1, 2, 3):
        seal_games(number)
    lose_database()
    shown, here = rebuild(), blobs()
    assert "nothing was changed" not in shown
    assert "`ringrift run` goes on from here" in shown
    assert "nothing was changed" in rebuild()
    assert answer("backup", "usb", "--prepare")["files"] == len(here) == 6
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    assert answer("restore", "usb")["missing"] == []
    assert blobs() == here
    lose_database()
    made = json.loads(rebuild("--json"))["configs"][CONFIG]
    assert (made["games_unchecked"], made["jobs"]) == (15, 3)


def test_a_file_that_only_looks_like_the_record_of_a_job_does_not_end_a_rebuild():
    """It may be from another node, which can send any bytes that have the right hash."""
    seal_games(1)
    deep = b'{"sealed":"job","item_id":"x","order":{"config":"c","params":%s1%s}}'
    in_engine(lambda engine: engine.blobs.put_bytes(deep % (b'{"a":' * 100_000, b"}" * 100_000)))
    lose_database()
    made = json.loads(rebuild("--json"))
    assert (made["files"], made["configs"][CONFIG]["games_unchecked"]) == (3, 5)


def test_a_rebuild_where_no_run_was_leaves_nothing_behind(tmp_path):
    done = CliRunner().invoke(app, ["rebuild", "--data", str(tmp_path / "mistyped")])
    assert done.exit_code == 2
    assert "nothing to rebuild from" in done.output
    assert not (tmp_path / "mistyped").exists()


def test_records_of_jobs_that_nothing_names_are_backed_up_too(usb, tmp_path, monkeypatch):
    """So it is in a folder that an earlier version rebuilt."""
    record = seal_games(1)
    ringrift("backup", "usb", "--prepare")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    ringrift("restore", "usb")
    assert record in blobs()


def test_no_run_is_restored_into_an_archive(usb, monkeypatch):
    make("games", "before")
    ringrift("backup", "usb", "--prepare")
    before = sorted(usb.rglob("*"))
    for place in (usb, usb / "run" / "data"):
        monkeypatch.setenv("RINGRIFT_DATA_DIR", str(place))
        for options in ((), ("--no-memory",), ("--type", "games")):
            assert "lies in the archive" in ringrift("restore", "usb", *options, code=2).stderr
    assert sorted(usb.rglob("*")) == before


def test_a_second_restore_into_a_folder_is_told_of_the_first(usb, tmp_path, monkeypatch):
    make("games", "before")
    ringrift("backup", "usb", "--prepare")
    fresh = tmp_path / "fresh"
    fresh.mkdir(mode=0o700)
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(fresh))
    first = LockFile(fresh)
    assert first.try_lock()
    assert "another restore is at work here" in ringrift("restore", "usb", code=2).stderr
    first.close()
    assert answer("restore", "usb")["files"] == 1
    shown = ringrift("restore", "usb").stdout
    assert "There is a run here" in shown
    assert "no state was taken" in shown


def test_status_knows_a_restored_run_that_was_not_started(usb, tmp_path, monkeypatch):
    """It said that there never was one."""
    write_models(CONFIG)
    ringrift("backup", "usb", "--prepare")
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "fresh"))
    ringrift("restore", "usb", "--incomplete")
    process_scope().clear()
    shown = " ".join(CliRunner().invoke(app, ["status"]).stdout.split())
    assert "has not been started since it was restored" in shown
    assert f"{CONFIG} (7 facts)" in shown
    assert "no run was ever" not in shown
    told = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
    assert (told["running"], told["not_started"]) == (False, {CONFIG: 7})
