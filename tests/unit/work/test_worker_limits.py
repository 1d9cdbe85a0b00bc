"""The bounds of a job: who sets them, and when one is passed."""

import os
import subprocess
import sys

import pytest

from ringrift.settings import JobSettings
from ringrift.work.job.protocol import JobOrder, JobOutput
from ringrift.work.job.runner import EndReason, JobLimits, Usage, limits_for, measure, what_is_wrong

LIMITS = JobLimits(timeout_s=100, silence_s=20, idle_s=50, memory_mb=500, output_bytes=1000)


def wrong(*, now_s=10.0, heard_s=10.0, moved_s=10.0, memory_mb=10.0, said=0):
    job_output = JobOutput(now_s=0.0)
    job_output.heard_s, job_output.moved_s, job_output.bytes_heard = heard_s, moved_s, said
    found = what_is_wrong(LIMITS, job_output, Usage(memory_mb), started_s=0.0, now_s=now_s)
    return found and found[0]


def test_a_job_within_its_bounds_goes_on():
    assert wrong() is None


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        ({"now_s": 101.0, "heard_s": 100.0, "moved_s": 100.0}, EndReason.TIMEOUT),
        ({"now_s": 31.0}, EndReason.STUCK),
        ({"now_s": 61.0, "heard_s": 60.0}, EndReason.STUCK),
        ({"memory_mb": 501.0}, EndReason.MEMORY),
        ({"said": 1001}, EndReason.OUTPUT),
    ],
)
def test_each_bound_ends_a_job(facts, ending):
    assert wrong(**facts) is ending


def test_the_order_goes_before_the_user_and_the_user_before_what_was_measured():
    bare, limited = JobOrder(config="c", params={}), JobOrder(config="c", params={}, timeout_s=5, memory_mb=9)
    said = JobSettings(kind="train", timeout_s=7, memory_mb=8, nice=3, cpus=(1,))
    assert limits_for("train", limited, said, measured_timeout_s=6).timeout_s == 5
    assert limits_for("train", bare, said, measured_timeout_s=6).timeout_s == 7
    assert limits_for("train", bare, JobSettings(kind="train"), measured_timeout_s=6).timeout_s == 6
    assert limits_for("train", bare, JobSettings(kind="train")).timeout_s > 3600
    assert limits_for("train", limited, said).memory_mb == 9
    found = limits_for("train", bare, said)
    assert (found.memory_mb, found.nice, found.cpus) == (8, 3, (1,))


def test_a_foreign_program_may_be_silent_for_longer():
    order = JobOrder(config="c", params={})
    own = limits_for("train", order, JobSettings(kind="train"))
    foreign = limits_for("train", order, JobSettings(kind="train", command=("x",)))
    assert foreign.silence_s > own.silence_s
    told = limits_for("train", order, JobSettings(kind="train", command=("x",), silence_s=5.0))
    assert told.silence_s == 5.0


def test_memory_and_time_count_everything_that_a_job_started():
    program = (
        "import subprocess, sys\n"
        "one = 'x = bytearray(64_000_000); print(flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', one], stdin=subprocess.PIPE)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        process.stdout.readline()
        usage = measure(process.pid, Usage())
        assert usage.memory_mb > 60
        assert usage.memory_mb_peak == usage.memory_mb
        assert usage.cpu_s > 0
        assert measure(process.pid, Usage(), alone=True).memory_mb < 60
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    assert measure(process.pid, usage) == usage  # gone: what is known stays known
