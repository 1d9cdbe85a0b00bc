"""A process is told from a later one of the same number."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from ringrift import process_identity
from ringrift.process_identity import is_alive, own_start_s


def test_a_start_told_as_a_time_of_day_is_understood():
    told_s = psutil.Process().create_time()
    assert process_identity._start_s_elsewhere(os.getpid()) == pytest.approx(told_s, abs=1.0)
    assert is_alive(os.getpid(), told_s)
    assert not is_alive(os.getpid(), told_s - 3600)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell starts as times of day")
def test_a_wall_clock_that_is_set_makes_nobody_dead(monkeypatch):
    began_s = own_start_s()
    monkeypatch.setattr(process_identity, "_boot_wall_s", lambda: 0.0)  # what setting the clock changes
    assert is_alive(os.getpid(), began_s)
    assert not is_alive(os.getpid(), began_s + 1.0)


def test_this_process_lives_and_one_that_began_at_another_time_does_not():
    assert is_alive(os.getpid(), own_start_s())
    assert is_alive(os.getpid(), None)
    assert not is_alive(os.getpid(), own_start_s() - 3600)


def test_a_process_that_ended_does_not_live_although_nobody_has_fetched_it_yet():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid, None)
    child.stdin.close()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not is_alive(child.pid, None)
    assert process_identity._start_s_elsewhere(child.pid) is None
    child.wait()
    assert not is_alive(child.pid, None)
    assert process_identity._start_s_elsewhere(child.pid) is None


def test_a_process_of_which_nothing_is_told_lives(monkeypatch):
    def hidden(pid):
        raise PermissionError(pid)

    monkeypatch.setattr(process_identity, "_stat_fields", hidden)
    monkeypatch.setattr(process_identity.sys, "platform", "linux")
    assert is_alive(os.getpid(), None)


def test_the_name_of_a_program_may_hold_brackets(tmp_path):
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        assert is_alive(child.pid, None)
    finally:
        child.kill()
        child.wait()
