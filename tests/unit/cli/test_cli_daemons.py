"""`ringrift daemons`, and commands on a data folder that is not well."""

import json
import os

import pytest
from click.testing import CliRunner

from ringrift.cli.main import app
from ringrift.daemons.registry import product_registry


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
