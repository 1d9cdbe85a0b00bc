"""`ringrift events list` and `show`: what a person asks about events."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ringrift.cli.main import app
from ringrift.events.catalog.table import CATALOG


def ringrift(*arguments, code=0):
    done = CliRunner().invoke(app, ["events", *arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_every_event_is_listed():
    listed = json.loads(ringrift("list", "--json"))["events"]
    assert {each["name"] for each in listed} == CATALOG.keys()


def test_one_category_is_listed_alone_and_a_wrong_one_is_refused():
    shown = ringrift("list", "backup")
    assert "S3_BACKUP_COMPLETED" in shown
    assert "TRAINING_COMPLETED" not in shown
    assert "there is no category 'backups'; there are: backup, " in ringrift("list", "backups", code=2)


@pytest.mark.parametrize("name", ["TRAINING_COMPLETED", "training_completed", "TRAINING_COMPLETE"])
def test_an_event_is_shown_by_any_of_its_names_with_who_really_sends_it(name):
    shown = json.loads(ringrift("show", name, "--json"))
    assert (shown["name"], shown["other_names"]) == ("TRAINING_COMPLETED", ["TRAINING_COMPLETE"])
    assert "data_pipeline" in shown["emitters"]
    assert "feedback_loop" in shown["subscribers"]
    model_path = next(each for each in shown["fields"] if each["name"] == "model_path")
    assert (model_path["required"], model_path["also"]) == (True, ["checkpoint_path", "path"])


def test_an_event_whose_sender_is_not_built_says_so_and_never_happened_here():
    shown = ringrift("show", "P2P_NODE_DEAD")
    assert "sent by      capability not built yet: membership" in shown
    assert "seen here    sent -, received -" in shown


def test_a_misspelled_event_is_answered_with_the_right_one():
    assert "did you mean TRAINING_COMPLETED?" in ringrift("show", "TRAINING_COMPLETD", code=2)


SENDS_AND_EXITS = """
import asyncio
from app.coordination.event_router import publish
asyncio.run(publish("HOST_ONLINE", payload={"node_id": "n"}, source="user"))
"""


def test_what_a_script_sent_once_before_it_ended_was_sent_in_this_folder():
    subprocess.run([sys.executable, "-c", SENDS_AND_EXITS], check=True, timeout=120)
    (tailed,) = map(json.loads, ringrift("tail", "--no-follow", "--json").splitlines())
    assert tailed["event_type"] == "HOST_ONLINE"
    audited = {each["name"]: each for each in json.loads(ringrift("audit", "--json"))["events"]}
    assert audited["HOST_ONLINE"]["last_sent_s"] == tailed["appended_s"]
    assert audited["HOST_OFFLINE"]["last_sent_s"] is None
    assert "sent -" not in ringrift("show", "HOST_ONLINE")
