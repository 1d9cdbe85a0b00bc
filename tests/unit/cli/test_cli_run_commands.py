"""The commands that look at a run and steer it."""

import os
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
from run_folder import answer, in_engine, ringrift, write_models, write_status, write_student

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.safeguards import get_emergency_stop
from ringrift.engine.ports import Claimant, NewWork
from ringrift.health.run_status import EXPLAIN_PREFIX, read_run_choice
from ringrift.learning.facts.ledger import quoted
from ringrift.learning.plan.orders import Explanation
from ringrift.learning.requests import ALL, Pauses
from ringrift.testing.sample_run import TWELVE, SampleRun
from ringrift.work.worker.records import WorkerRecord, worker_key

TWO = SampleRun(configs=("square8_2p", "hex8_2p"))


def pretend_to_run(pid=None):
    """Write the file by which others see a running control process."""
    process = psutil.Process(pid or os.getpid())
    folder = get_settings().coordination_dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "master_loop.pid").write_text(f"{process.pid} {process.create_time()}\n")


# --- status ---------------------------------------------------------------------------------------------


def test_status_has_every_number_that_programs_ask_for():
    write_status(TWO)
    pretend_to_run()
    told = answer("status")
    assert told["running"] is True
    assert told["state"] == "running"
    config = told["configs"]["square8_2p"]
    for name in (
        "games",
        "rows",
        "trained_rows",
        "promotions",
        "champion",
        "rating",
        "rating_interval",
        "stage",
    ):
        assert config[name] is not None
    assert config["blocked"] == {}
    assert config["rating_interval"][0] < config["rating"] < config["rating_interval"][1]


def test_status_of_a_run_that_is_over_says_so_and_how_old_it_is():
    write_status(SampleRun(now_s=time.time() - 7200))
    told = answer("status")
    assert (told["running"], told["state"]) == (False, "stopped")
    assert told["age_s"] == pytest.approx(7200, abs=60)
    shown = ringrift("status").stdout
    assert "not running: last seen 2 h ago" in shown
    assert "square8_2p" in shown


def test_status_of_an_empty_folder_is_no_error_and_makes_no_file():
    told = answer("status")
    assert (told["running"], told["configs"]) == (False, {})
    assert "no run was ever told of" in ringrift("status").stdout
    assert not get_settings().coordinator_db.exists()


def test_a_control_process_that_tells_nothing_is_pointed_out():
    write_status(SampleRun(now_s=time.time() - 300))
    pretend_to_run()
    assert "told nothing for 5 min" in ringrift("status").stdout


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_status_fits_any_terminal(monkeypatch, columns):
    write_status(SampleRun(configs=TWELVE))
    monkeypatch.setenv("COLUMNS", columns)
    lines = ringrift("status").stdout.splitlines()
    assert max(len(line) for line in lines) <= int(columns)


def test_status_reads_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "other"))
    write_status(SampleRun(configs=("hex8_2p",)))
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "elsewhere"))
    assert list(answer("status", "--data", str(tmp_path / "other"))["configs"]) == ["hex8_2p"]


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("stop",),
        ("models",),
        ("pause",),
        ("doctor", "--quick"),
        ("run", "--plain", "--for", "1s"),
    ],
)
@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_where_the_data_folder_should_be_is_pointed_out(tmp_path, command, below):
    in_the_way = tmp_path / "notes.txt"
    in_the_way.write_text("mine")
    refused = ringrift(*command, "--data", str(in_the_way / below), code=2)
    assert f"{in_the_way} is a file" in refused.stderr
    assert "--data" in refused.stderr
    assert in_the_way.read_text() == "mine"


# --- pause, resume, stop --------------------------------------------------------------------------------


def pause_of(config):
    return in_engine(lambda engine: Pauses(engine.kv).get(config))


def claimable():
    """What a worker would get now, whatever it can do."""

    async def claim(engine):
        claims = await engine.queue.claim(Claimant(worker="w1"), lease_s=60, limit=100)
        for each in claims:
            await engine.queue.release(each.id, token=each.token)
        return {each.id for each in claims}

    return in_engine(claim)


def test_a_config_is_paused_and_goes_on():
    write_status(TWO)
    ringrift("pause", "hex8_2p", "--reason", "the board is needed")
    assert pause_of("hex8_2p").reason == "the board is needed"
    assert pause_of("hex8_2p").by
    assert pause_of(ALL) is None
    assert answer("resume", "hex8_2p")["resumed"] == ["hex8_2p"]
    assert pause_of("hex8_2p") is None
    assert "hex8_2p was not paused" in ringrift("resume", "hex8_2p").stdout


def test_what_waits_in_the_queue_is_not_claimed_while_its_config_is_paused():
    write_status(TWO)
    items = [NewWork(kind="train", id=f"{config}.1", group=config) for config in TWO.configs]
    in_engine(lambda engine: engine.queue.add([*items, NewWork(kind="tune", id="mine")]))
    ringrift("pause", "hex8_2p")
    assert claimable() == {"square8_2p.1", "mine"}
    ringrift("pause")
    assert claimable() == set()
    ringrift("resume", "hex8_2p")
    assert claimable() == set(), "the whole run is still paused"
    ringrift("resume")
    assert claimable() == {"square8_2p.1", "hex8_2p.1", "mine"}


def test_resuming_everything_also_resumes_what_was_paused_alone():
    write_status(TWO)
    ringrift("pause", "hex8_2p")
    ringrift("pause")
    assert pause_of(ALL)
    only_one = answer("resume", "hex8_2p")
    assert only_one["still_paused"]
    ringrift("resume")
    assert pause_of(ALL) is None
    assert pause_of("hex8_2p") is None


@pytest.mark.parametrize("command", ["pause", "resume", "explain", "models", "report"])
def test_an_unknown_config_is_answered_with_the_known_ones(command):
    write_status(TWO)
    refused = ringrift(command, "hex8_3p", code=2)
    assert (
        "'hex8_3p' is not learned here; there are square8_2p, hex8_2p; did you mean hex8_2p?"
        in refused.stderr
    )
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("pause",), ("models",), ("queue",), ("explain", "hex8_2p"), ("report",)]
)
def test_a_folder_without_a_run_is_named(command):
    refused = ringrift(*command, code=2)
    assert "there is no run in" in refused.stderr
    assert not get_settings().coordinator_db.exists()


def test_an_emergency_stop_ends_only_when_asked():
    write_status(TWO)
    in_engine(lambda engine: get_emergency_stop().turn_on("the room is on fire"))
    assert "the room is on fire" in ringrift("resume").stdout
    told = answer("resume", "--clear-emergency")
    assert told["emergency_cleared"] == "the room is on fire"
    assert told["emergency"] == ""


def test_stop_asks_the_process_and_waits_for_its_end():
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        pretend_to_run(sleeper.pid)
        told = answer("stop", "--timeout", "20s")
        assert (told["stopped"], told["pid"]) == (True, sleeper.pid)
        assert sleeper.wait(10) == -15
    finally:
        sleeper.kill()


def test_stop_gives_up_after_its_time_and_says_so():
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as sleeper:
        try:
            sleeper.stdout.readline()
            pretend_to_run(sleeper.pid)
            refused = ringrift("stop", "--timeout", "1s", code=2)
            assert f"process {sleeper.pid} was asked to stop and has not" in refused.stderr
        finally:
            sleeper.kill()


def test_stop_without_a_run_is_no_error():
    assert answer("stop")["stopped"] is False


# --- explain --------------------------------------------------------------------------------------------


def test_explain_says_stage_by_stage_what_happens_and_why():
    write_status(TWO)
    found = [
        Explanation(stage="selfplay", will=True, reason="2 slots are free"),
        Explanation(stage="train", will=False, reason="1,212 rows are missing", until_s=time.time() + 90),
    ]
    in_engine(lambda engine: engine.kv.put(EXPLAIN_PREFIX + quoted("hex8_2p"), msgspec.json.encode(found)))
    assert answer("explain", "hex8_2p")["stages"][1]["reason"] == "1,212 rows are missing"
    shown = ringrift("explain", "hex8_2p").stdout
    assert "The run is stopped" in shown
    assert "Self-play" in shown
    assert "1,212 rows are missing (for 1 min 30 s)" in shown
    assert "said nothing of square8_2p" in ringrift("explain", "square8_2p").stdout


def test_explain_and_status_tell_a_pause_as_such():
    write_status(SampleRun(configs=TWO.configs, paused=True))
    pretend_to_run()
    found = [Explanation(stage="selfplay", will=False, reason="paused: the board is needed", paused=True)]
    in_engine(lambda engine: engine.kv.put(EXPLAIN_PREFIX + quoted("hex8_2p"), msgspec.json.encode(found)))
    assert answer("explain", "hex8_2p")["paused"] is None
    ringrift("pause", "hex8_2p", "--reason", "the board is needed")
    told = answer("explain", "hex8_2p")
    assert (told["paused"]["reason"], told["stages"][0]["paused"]) == ("the board is needed", True)
    shown = ringrift("explain", "hex8_2p").stdout
    assert "hex8_2p is paused by" in shown
    assert "Self-play  paused" in shown
    config = answer("status")["configs"]["hex8_2p"]
    assert (config["stage"], config["blocked"], config["paused"]["by"]) == ("paused", {}, "anna")
    shown = ringrift("status").stdout
    assert "the run is paused by anna" in shown
    assert "waits" not in shown.split("last decisions")[0]


def test_explain_says_that_somebody_stopped_the_loop_itself():
    write_status(TWO)
    assert answer("explain", "hex8_2p")["loop_stopped"] is None
    ringrift("daemons", "stop", "data_pipeline", "--reason", "the machine is needed")
    assert answer("explain", "hex8_2p")["loop_stopped"]["reason"] == "the machine is needed"
    assert "DATA_PIPELINE is stopped by" in ringrift("explain", "hex8_2p").stdout
    ringrift("daemons", "start", "data_pipeline")
    assert answer("explain", "hex8_2p")["loop_stopped"] is None


# --- models ---------------------------------------------------------------------------------------------


def test_models_are_listed_with_lineage_and_state():
    first, second = write_models("square8_2p")
    (older, newer) = answer("models", "square8_2p")["square8_2p"]
    assert (older["model"], older["parent"], older["is_champion"]) == (first, None, True)
    assert (newer["model"], newer["parent"], newer["is_champion"]) == (second, first, False)
    assert older["state"] == "production"
    shown = ringrift("models").stdout
    assert first[:10] in shown
    assert "1 *" in shown


def test_a_model_is_shown_with_its_history():
    first, second = write_models("square8_2p", promoted=2)
    told = answer("models", "show", "square8_2p", "2")
    assert told["lineage"] == [second, first]
    assert [step["state"] for step in told["history"]][-1] == "production"
    assert "won 40 of 64 points" in ringrift("models", "show", "square8_2p").stdout
    refused = ringrift("models", "show", "square8_2p", "77", code=2)
    assert "no model of square8_2p is called '77'" in refused.stderr


def test_the_champion_is_exported_whole_with_its_card(tmp_path):
    first, _ = write_models("square8_2p")
    written = answer("models", "export", "square8_2p", str(tmp_path / "out"))
    with open(written["weights"], "rb") as weights, open(written["card"], "rb") as card:
        assert (weights.read(), card.read()) == (b"weights 1", b'{"card": 1}')
    assert written["weights"].endswith(f"square8_2p-1-{first[:10]}.safetensors")
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".safetensors"]


def test_an_exported_model_is_on_the_disk_when_it_has_its_name(tmp_path, monkeypatch):
    write_models("square8_2p")
    sync, synced = os.fsync, set()

    def noted(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    written = answer("models", "export", "square8_2p", str(tmp_path / "out"))
    assert {os.stat(path).st_ino for path in written.values()} <= synced


def test_without_a_champion_export_says_what_to_name():
    write_models("square8_2p", promoted=0)
    refused = ringrift("models", "export", "square8_2p", "out", code=2)
    assert "has no champion yet" in refused.stderr


def test_students_are_listed_after_the_models_with_what_they_are_for():
    first, second = write_models("square8_2p")
    older = write_student("square8_2p", "distillation")
    newer = write_student("square8_2p", "distillation", at_s=600.0, parent=older)
    small = write_student("square8_2p", "small_net", at_s=700.0)
    told = answer("models", "square8_2p")["square8_2p"]
    assert [(each["model"], each["role"]) for each in told] == [
        (first, "contender"),
        (second, "contender"),
        (older, "distillation"),
        (newer, "distillation"),
        (small, "small_net"),
    ]
    assert [each["state"] for each in told[2:]] == ["superseded", "production", "production"]
    assert [each["is_champion"] for each in told[2:]] == [False, False, False]
    shown = ringrift("models").stdout
    assert shown.index(second[:10]) < shown.index("Students of square8_2p") < shown.index(newer[:10])
    assert "small_net" in shown


def test_a_config_without_students_has_no_table_of_them():
    write_models("square8_2p")
    assert "Students" not in ringrift("models").stdout


@pytest.mark.parametrize("name", ["distillation", "the digest"])
def test_a_student_is_shown_by_what_it_is_for_and_by_its_digest(name):
    first, _ = write_models("square8_2p")
    older = write_student("square8_2p", "distillation")
    newer = write_student("square8_2p", "distillation", at_s=600.0, parent=older)
    asked = newer[:12] if name == "the digest" else name
    assert answer("models", "show", "square8_2p", asked)["lineage"] == [newer, older]
    assert f"distillation 2 of square8_2p: {newer}" in ringrift("models", "show", "square8_2p", asked).stdout
    assert answer("models", "show", "square8_2p", "1")["model"] == first, "numbers are those of the models"


def test_a_student_that_was_never_taught_is_no_model():
    write_models("square8_2p")
    assert "is called 'small_net'" in ringrift("models", "show", "square8_2p", "small_net", code=2).stderr


def test_an_exported_student_is_named_by_what_it_is_for(tmp_path):
    write_models("square8_2p")
    student = write_student("square8_2p", "small_net")
    out = str(tmp_path / "out")
    written = answer("models", "export", "square8_2p", out, "--model", "small_net")
    assert written["weights"].endswith(f"square8_2p-small_net-1-{student[:10]}.safetensors")


# --- queue ----------------------------------------------------------------------------------------------


def fill_queue():
    async def fill(engine):
        await engine.queue.add(
            [NewWork(kind="selfplay", id="ready-1"), NewWork(kind="train", id="bad-1", attempts_max=1)]
        )
        (claim,) = await engine.queue.claim(Claimant(worker="w1", kinds=frozenset({"train"})), lease_s=60)
        await engine.queue.fail(claim.id, token=claim.token, error="out of\nmemory")

    in_engine(fill)


def test_the_queue_is_counted_and_dead_items_are_revived():
    fill_queue()
    counts = answer("queue")
    assert (counts["selfplay"]["ready"], counts["train"]["dead"]) == (1, 1)
    assert "out of memory" in ringrift("queue", "dead").stdout
    assert "1 revived" in ringrift("queue", "revive", "all").stdout
    assert answer("queue")["train"]["ready"] == 1
    refused = ringrift("queue", "revive", "bad-1", code=2)
    assert "only a dead item can be revived" in refused.stderr


def test_an_item_is_cancelled_once():
    fill_queue()
    ringrift("queue", "cancel", "ready-1")
    assert answer("queue")["selfplay"]["cancelled"] == 1
    assert "is cancelled already" in ringrift("queue", "cancel", "ready-1", code=2).stderr
    assert "no item 'nope'" in ringrift("queue", "cancel", "nope", code=2).stderr


def test_what_is_claimed_is_listed_with_its_worker():
    async def claim(engine):
        await engine.queue.add([NewWork(kind="selfplay", id="held-1")])
        await engine.queue.claim(Claimant(worker="box/1"), lease_s=60)

    in_engine(claim)
    (item,) = answer("queue", "list")
    assert (item["id"], item["holder"]) == ("held-1", "box/1")
    assert "box/1" in ringrift("queue", "list").stdout


def a_worker(**changes):
    fields = {
        "name": "box-1", "node": "box", "pid": 1, "slots": 1, "busy": 1, "kinds": None,
        "capabilities": ("cpu",), "cpus": 1, "gpus": 0, "memory_mb": 1, "memory_free_mb": 1, "load": 0.0,
        "started_s": 0.0, "at_s": 0.0,
    }  # fmt: skip
    record = WorkerRecord(**{**fields, **changes})
    return lambda engine: engine.kv.put(worker_key(record.name), msgspec.json.encode(record))


def listed(*arguments):
    return {item["id"]: item for item in answer("queue", "list", *arguments)}


def test_what_waits_is_listed_with_the_reason():
    write_status(TWO)

    async def fill(engine):
        await engine.queue.add(
            [
                NewWork(kind="selfplay", id="plain", group="square8_2p", priority=75),
                NewWork(kind="train", id="gpu", group="square8_2p", requires=frozenset({"gpu"})),
                NewWork(kind="export", id="elsewhere", node="attic"),
                NewWork(kind="export", id="next", group="square8_2p", after=("plain",)),
                NewWork(kind="export", id="later", delay_s=600.0),
                NewWork(kind="train", id="ours", group="hex8_2p"),
                NewWork(kind="train", id="bad", attempts_max=1, priority=99),
                NewWork(kind="tune", id="held", priority=98),
            ]
        )
        bad, _ = await engine.queue.claim(Claimant(worker="box/1"), lease_s=60, limit=2)
        await engine.queue.fail(bad.id, token=bad.token, error="out of memory")

    in_engine(fill)
    assert listed()["plain"]["why"] == "no worker is running"
    in_engine(a_worker())
    ringrift("pause", "hex8_2p", "--reason", "the board is needed")
    found = listed()
    assert {name: item["why"] for name, item in found.items() if item["listed"] == "waiting"} == {
        "plain": "for a worker that is free",
        "gpu": "no worker has what it requires: gpu",
        "elsewhere": "only attic may do it, and no worker runs there",
        "next": "needs plain",
        "later": "not for 10 min more",
        "ours": "paused: hex8_2p, the board is needed",
    }
    assert (found["bad"]["listed"], found["bad"]["why"]) == ("failed", "out of memory")
    assert (found["held"]["listed"], found["held"]["holder"]) == ("running", "box/1")
    plain = found["plain"]
    assert (plain["kind"], plain["config"], plain["priority"]) == ("selfplay", "square8_2p", 75)
    assert 0 <= plain["age_s"] < 600
    ringrift("pause")
    assert {item["why"].split(":")[0] for item in listed("--state", "waiting").values()} == {"paused"}


def test_the_list_of_the_queue_has_filters_and_says_what_it_leaves_out():
    items = [NewWork(kind="selfplay", id=f"a{n}", group="square8_2p") for n in range(5)]
    items.append(NewWork(kind="train", id="b", group="hex8_2p"))
    in_engine(lambda engine: engine.queue.add(items))
    assert list(listed("--config", "hex8_2p")) == list(listed("--kind", "train")) == ["b"]
    assert listed("--state", "failed") == {}
    assert "Nothing runs" in ringrift("queue", "list", "--state", "failed").stdout
    cut = ringrift("queue", "list", "--limit", "3")
    assert "more items are waiting than the 3 listed" in cut.stderr
    assert len(listed("--limit", "6")) == 6
    assert "more" not in ringrift("queue", "list", "--limit", "6").stderr
    shown = ringrift("queue", "list").stdout
    assert "hex8_2p" in shown
    assert "no worker is running" in shown
    assert "is not one of" in ringrift("queue", "list", "--state", "lost", code=2).stderr


def test_a_config_that_is_not_there_is_refused_with_those_that_are():
    write_status(TWO)
    refused = ringrift("queue", "list", "--config", "square8_2", code=2).stderr
    assert "'square8_2' is not learned here; there are" in refused
    assert "did you mean square8_2p?" in refused
    assert listed("--config", "square8_2p") == {}, "one that is there may have no work"


# --- report ---------------------------------------------------------------------------------------------


def test_a_report_is_one_file_with_curve_costs_and_evidence(tmp_path):
    write_status(TWO)
    write_models("square8_2p", evidence={"games": 64, "note": "<script>alert(1)</script>"})
    told = answer("report", "--out", str(tmp_path / "run.html"))
    assert told["configs"] == ["square8_2p", "hex8_2p"]
    text = (tmp_path / "run.html").read_text(encoding="utf8")
    assert text.count("<svg") == 2
    assert "<polyline" in text
    assert "won 40 of 64 points" in text
    assert "<td>a rating point</td>" in text
    assert "<script" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_report_has_the_students_under_what_they_are_for(tmp_path):
    write_status(TWO)
    write_models("square8_2p")
    student = write_student("square8_2p", "distillation")
    path = tmp_path / "run.md"
    ringrift("report", "square8_2p", "--out", str(path))
    assert f"| distillation | {student[:10]} |" in path.read_text()


def test_a_report_of_one_config_as_markdown(tmp_path):
    write_status(TWO)
    ringrift("report", "hex8_2p", "--out", str(tmp_path / "run.md"))
    text = (tmp_path / "run.md").read_text(encoding="utf8")
    assert "## hex8\\_2p" in text
    assert "square8" not in text
    assert "data:image/svg+xml;base64," in text
    refused = ringrift("report", "--out", str(tmp_path / "run.pdf"), code=2)
    assert "must end in .html" in refused.stderr


# --- run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--configs", "chess_2p"), "'chess_2p' is no config; there are connect_four_2p"),
        (("--configs", "square8_7p"), "'square8_7p' is no config"),
        (("--configs", ","), "no config is named"),
        (("--workers", "-1"), "--workers is -1; it must be from 0"),
        (("--for", "soon"), "--for is 'soon'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(arguments, complaint):
    refused = ringrift("run", "--plain", *arguments, code=2)
    assert complaint in refused.stderr
    assert not get_settings().coordinator_db.exists()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("[learning]\nsimulation = 8", "[learning] has the unknown setting 'simulation'; it may have: "),
        ("[nodes.other]\nadress = 1", "[nodes.other]: "),
        ("[sync]\ninterval = 60", "[sync] of the config file: "),
        ('[sync]\nexcluded_hosts = ["bee"]', "excluded_hosts of [sync] names 'bee', which is no node"),
    ],
)
def test_a_run_with_a_wrong_table_is_refused_before_it_starts(tmp_path, monkeypatch, table, complaint):
    path = tmp_path / "ringrift.toml"
    path.write_text(f"{table}\n")
    monkeypatch.setenv("RINGRIFT_CONFIG", str(path))
    refused = ringrift("run", "--plain", "--for", "1s", code=2)
    assert complaint in refused.stderr
    monkeypatch.delenv("RINGRIFT_CONFIG")
    assert not get_settings().coordinator_db.exists()


def test_a_run_goes_on_with_its_configs():
    write_status(TWO)
    choice = in_engine(lambda engine: read_run_choice(engine.kv))
    assert choice.configs == ("square8_2p", "hex8_2p")


# --- cost -----------------------------------------------------------------------------------------------


def test_status_tells_what_a_game_a_promotion_and_a_rating_point_cost_in_cpu_gpu_and_money():
    write_status(TWO)
    shown = ringrift("status").stdout
    head = next(line for line in shown.splitlines() if line.startswith("cost"))
    assert head.split("  ")[-1].strip() == "a rating point"
    lines = shown.splitlines()[shown.splitlines().index(head) + 1 :]
    assert [line.split()[:2] for line in lines[:2]] == [["square8_2p", "CPU"], ["GPU", "13.4"]]
    assert lines[2].split()[0] == "money"
    assert lines[3].split()[:2] == ["hex8_2p", "CPU"]
    assert "GPU" not in "".join(lines[4:])  # hex8_2p had none


def test_the_report_has_a_table_of_costs(tmp_path):
    write_status(TWO)
    write_models("square8_2p")
    ringrift("report", "square8_2p", "--out", str(tmp_path / "run.md"))
    report = (tmp_path / "run.md").read_text()
    assert "|  | CPU | GPU | money |" in report
    for what in ("in all", "a game", "a promotion", "a rating point"):
        (row,) = [line for line in report.splitlines() if line.startswith(f"| {what} |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(cell != "-" for cell in cells)


def test_evidence_is_told_in_words(tmp_path):
    write_status(TWO)
    evidence = {"untrained": {"games": 160, "pairs": [4, 0, 24], "places": [], "llr": 6.45123}, "by": "test"}
    write_models("square8_2p", evidence=evidence)
    ringrift("report", "square8_2p", "--out", str(tmp_path / "run.html"))
    text = (tmp_path / "run.html").read_text()
    assert "by test; untrained: games 160, pairs 4/0/24, llr 6.451" in text
    assert "last seen at" in text  # this run is over
