"""`ringrift daemons`, and commands on a data folder that is not well."""

import json
import os

import pytest
from click.testing import CliRunner
from run_folder import in_engine, write_status

from ringrift.cli.main import app
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.daemons.registry import product_registry
from ringrift.daemons.requests import DaemonRequests
from ringrift.engine.lock_files import OWN_PROGRAM
from ringrift.testing.sample_run import SampleRun


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data" / "coordination").mkdir(parents=True)
    return tmp_path / "data"


def ringrift(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_leaving_out_what_cannot_run_does_not_change_how_many_there_are(data):
    shown = ringrift("daemons", "--available")
    assert shown.exit_code == 0
    able = sum(not spec.unavailable_reason for spec in product_registry())
    assert 0 < able < 89
    assert f"{able} of 89 can run" in shown.stdout
    assert "vast_idle" not in shown.stdout


@pytest.mark.parametrize(
    "left_behind", ["", "{", "[]", json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()})]
)
def test_what_a_dead_control_process_left_behind_is_no_running_one(data, left_behind):
    (data / "coordination" / "probes.json").write_text(left_behind)
    listed = json.loads(ringrift("daemons", "--json").stdout)
    assert listed["control_process"] is False


def test_a_data_folder_that_cannot_be_one_is_named_in_one_line(data, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    refused = ringrift("run", "--plain", "--for", "1s", "--data", str(tmp_path / "file"))
    assert refused.exit_code == 2
    last = refused.stderr.splitlines()[-1]
    assert str(tmp_path / "file") in last
    assert "try again" not in last


# --- stop, start, restart -------------------------------------------------------------------------------


def row(name):
    return json.loads(ringrift("daemons", "--json").stdout)["daemons"][name]


def test_a_stop_of_a_run_that_is_down_is_noted_with_its_reason_and_shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    write_status(SampleRun())
    told = ringrift("daemons", "stop", "auto_export", "--reason", "the disk is slow")
    assert told.exit_code == 0
    assert "auto_export stays stopped from the next `ringrift run` on" in told.stdout
    found = row("auto_export")
    assert found["request"]["reason"] == "the disk is slow"
    assert found["request"]["by"]
    assert found["request"]["done_s"] is None
    assert "(from the next run on): the disk is slow" in found["reason"]
    assert "the disk is slow" in ringrift("daemons").stdout
    assert row("auto_sync")["request"] is None
    started = json.loads(ringrift("daemons", "restart", "auto_export", "--json").stdout)
    assert (started["want"], started["running"]) == ("start", False), "the next run starts it afresh"
    assert row("auto_export")["reason"] == ""


def test_the_doctor_names_what_a_stopped_daemon_leaves_undone_until_it_is_started_again():
    write_status(SampleRun())

    def findings():
        found = json.loads(ringrift("doctor", "--quick", "--json").stdout)["findings"]
        return [each["text"] for each in found if each["check"] == "stopped_daemons"]

    assert findings() == []
    ringrift("daemons", "stop", "dlq_retry", "--reason", "a letter is looked at")
    (told,) = findings()
    assert told.startswith("DLQ_RETRY is stopped: ")
    assert "a letter is looked at (since " in told
    assert "nobody does what it does: retries failed deliveries" in told
    ringrift("daemons", "start", "dlq_retry")
    assert findings() == []


def test_a_second_stop_keeps_the_reason_and_says_that_it_was_stopped_already():
    write_status(SampleRun())
    ringrift("daemons", "stop", "auto_export", "--reason", "the disk is slow")
    first = row("auto_export")["request"]
    told = ringrift("daemons", "stop", "auto_export").stdout
    assert "it was stopped already" in told
    assert "the disk is slow" in told
    assert row("auto_export")["request"] == first
    told = json.loads(ringrift("daemons", "stop", "auto_export", "--reason", "it is full", "--json").stdout)
    assert (told["already"], told["reason"], told["at_s"]) == (True, "it is full", first["at_s"])


def test_an_alias_says_of_what_with_and_without_a_run(data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    aliases = {spec.daemon_type.value: spec for spec in product_registry() if spec.deprecated_for is not None}

    def shown():
        rows = {line.split()[0]: line for line in ringrift("daemons").stdout.splitlines() if line.strip()}
        return {name: rows[name] for name in aliases}

    with MasterLoopGuard(profile="standard"):
        live = shown()
    for name, line in [*shown().items(), *live.items()]:
        assert f"{aliases[name].deprecated_for} " in line.partition(name)[2], line
    assert "auto_sync under another name; the profile standard does not have it" in live["sync_coordinator"]
    rows = json.loads(ringrift("daemons", "--json").stdout)["daemons"]
    assert {name: rows[name]["deprecated_for"] for name in rows} == {
        name: aliases[name].deprecated_for.value if name in aliases else None for name in rows
    }


def test_an_alias_that_nobody_started_is_not_there_to_be_stopped():
    write_status(SampleRun())
    refused = ringrift("daemons", "stop", "unified_promotion")
    assert refused.exit_code == 2
    assert "`ringrift daemons stop auto_promotion` stops both" in refused.stderr
    assert in_engine(lambda engine: DaemonRequests(engine.kv).all()) == {}
    ringrift("daemons", "start", "unified_promotion")
    assert ringrift("daemons", "stop", "unified_promotion").exit_code == 0
    assert in_engine(lambda engine: DaemonRequests(engine.kv).stops()) == {}


def test_what_an_alias_shows_of_its_original_is_how_that_is_now(data, monkeypatch):
    """A live run keeps for an alias why it was refused, which may be long ago."""
    sample = {name: {"state": "stopped"} for name in ("auto_promotion", "unified_promotion")}
    sample["unified_promotion"]["last_error"] = "deprecated: auto_promotion does the same and is running"
    monkeypatch.setattr("ringrift.cli.processes.running_status", lambda: {"daemons": sample})
    write_status(SampleRun())
    ringrift("daemons", "stop", "auto_promotion", "--reason", "z")
    told = row("unified_promotion")["reason"]
    assert told.startswith("auto_promotion does the same and is stopped by ")
    assert told.endswith(": z")
    ringrift("daemons", "start", "auto_promotion")
    sample["auto_promotion"]["state"] = "running"
    assert row("unified_promotion")["reason"] == "auto_promotion does the same and is running"


def test_explain_names_stopped_daemons_of_which_no_stage_speaks():
    write_status(SampleRun())
    ringrift("daemons", "stop", "dlq_retry", "--reason", "a letter is looked at")
    told = ringrift("explain", "square8_2p")
    assert told.exit_code == 0
    assert "DLQ_RETRY is stopped: " in told.stdout
    assert "a letter is looked at (since " in " ".join(told.stdout.split())
    assert "retries failed deliveries" in " ".join(told.stdout.split())
    found = json.loads(ringrift("explain", "square8_2p", "--json").stdout)
    assert list(found["stopped"]) == ["dlq_retry"]


def test_stopping_what_the_machine_lives_by_says_what_that_means():
    write_status(SampleRun())
    assert "nothing is decided" in ringrift("daemons", "stop", "DATA_PIPELINE").stdout
    told = json.loads(ringrift("daemons", "--json", "stop", "selfplay_coordinator").stdout)
    assert "no new games are ordered" in told["means"]
    assert "queue_populator" in told["means"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("stop", "auto_exprt"), "no daemon is called 'auto_exprt'; did you mean auto_export"),
        (("start", "vast_idle"), "vast_idle cannot be asked to start: capability not built yet"),
        (("restart",), "missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_asked_of_a_daemon_is_refused(arguments, complaint):
    write_status(SampleRun())
    refused = ringrift("daemons", *arguments)
    assert refused.exit_code == 2
    assert complaint in refused.stderr
    assert in_engine(lambda engine: DaemonRequests(engine.kv).all()) == {}


def test_where_no_run_ever_was_nothing_can_be_asked(data):
    refused = ringrift("daemons", "stop", "auto_export")
    assert refused.exit_code == 2
    assert "there is no run in" in refused.stderr


def test_a_run_with_a_small_profile_is_not_shown_as_starting_stopped_or_unknown(data):
    with MasterLoopGuard(profile="minimal"):
        told = ringrift("status").stdout
        rows = json.loads(ringrift("daemons", "--json").stdout)["daemons"]
    assert f"running: process {os.getpid()} with the profile minimal, which does not learn" in told
    assert (rows["training_trigger"]["state"], rows["event_router"]["state"]) == ("left out", "unknown")
    assert rows["training_trigger"]["reason"] == "the profile minimal does not have it"
    with MasterLoopGuard(profile="standard"):
        assert "starting: process" in ringrift("status").stdout
        rows = json.loads(ringrift("daemons", "--json").stdout)["daemons"]
    assert rows["training_trigger"]["state"] == "unknown"


def test_a_program_that_learns_by_itself_is_no_run_to_stop():
    write_status(SampleRun())
    with MasterLoopGuard(profile=OWN_PROGRAM):
        refused = ringrift("stop")
    assert refused.exit_code == 2
    assert f"process {os.getpid()} is a program that learns here by itself" in refused.stderr
