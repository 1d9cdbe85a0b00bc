"""Identities of processes: the same again after a restart, never shared by two that live."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringrift.engine.lock_files import base_name, take_instance_slot
from ringrift.errors import StorageReadOnly
from ringrift.settings import load_settings


def settings(tmp_path, **environ):
    return load_settings({"RINGRIFT_DATA_DIR": str(tmp_path), **environ}).settings


def test_the_same_command_line_has_the_same_name(tmp_path):
    found = settings(tmp_path)
    name = base_name(found, ["/usr/bin/ringrift", "run", "--node", "a"])
    assert name == base_name(found, ["/opt/ringrift", "run", "--node", "a"])
    assert name != base_name(found, ["/usr/bin/ringrift", "run", "--node", "b"])
    assert name.startswith("ringrift-")


def test_a_strange_program_name_makes_a_usable_file_name(tmp_path):
    slot = take_instance_slot(settings(tmp_path), ["/x/a b/ü\udcff:*", "-c"])
    assert slot.name.endswith(":1")
    slot.close()
    assert base_name(settings(tmp_path), [""]).startswith("python-")


def test_a_configured_name_wins(tmp_path):
    slot = take_instance_slot(settings(tmp_path, RINGRIFT_PROCESS_NAME="trainer"), ["x"])
    assert slot.name == "trainer:1"
    slot.close()


def test_two_that_live_never_share_and_a_freed_slot_is_taken_again(tmp_path):
    found = settings(tmp_path)
    first, second = (take_instance_slot(found, ["x"]) for _ in range(2))
    assert first.name != second.name
    first.close()
    first.close()
    again = take_instance_slot(found, ["x"])
    assert again.name == first.name
    again.close()
    second.close()


def test_a_killed_process_gives_its_identity_back(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from ringrift.engine.lock_files import take_instance_slot\n"
        "from ringrift.settings import load_settings\n"
        "found = load_settings({'RINGRIFT_DATA_DIR': sys.argv[1]}).settings\n"
        "slot = take_instance_slot(found, ['worker', 'x'])\n"
        "print(slot.name, flush=True); sys.stdin.read()\n"
    )
    names = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            names.append(child.stdout.readline().strip())
            mine = take_instance_slot(settings(tmp_path), ["worker", "x"])
            assert mine.name != names[-1]
            mine.close()
            os.kill(child.pid, signal.SIGKILL)
    assert names[0] == names[1]


def test_a_folder_that_cannot_be_used_is_told_as_such(tmp_path):
    (tmp_path / "coordination").write_text("a file in the way")
    with pytest.raises(StorageReadOnly):
        take_instance_slot(settings(Path(tmp_path)), ["x"])
