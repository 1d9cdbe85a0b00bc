"""Processes of a job are found by its folder: not those of a run in another data folder."""

import os
import subprocess

import psutil

from ringrift.work.job.protocol import end_processes_in, job_environment


def job_in(folder):
    folder.mkdir(parents=True)
    env = job_environment(
        item_id="square8_2p.train.000001", kind="train", config="square8_2p", out=str(folder), trace={}
    )
    return subprocess.Popen(["sleep", "600"], env=env)


def test_runs_with_items_of_the_same_name_leave_each_other_alone(tmp_path):
    ours, theirs = job_in(tmp_path / "a" / "out"), job_in(tmp_path / "b" / "out")
    try:
        assert end_processes_in(tmp_path / "a" / "out") == 1
        assert not psutil.pid_exists(ours.pid)
        assert theirs.poll() is None
    finally:
        for each in (ours, theirs):
            each.kill()
            each.wait()


def test_a_folder_is_found_under_each_of_its_names(tmp_path):
    job = job_in(tmp_path / "data" / "out")
    os.symlink(tmp_path / "data", tmp_path / "link")
    assert end_processes_in(tmp_path / "link" / "out") == 1
    assert not psutil.pid_exists(job.pid)
    job.wait()
