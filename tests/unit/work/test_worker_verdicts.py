"""What becomes of an item, by how its job ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.work.job.protocol import JobOutput
from ringrift.work.job.runner import RETRY_S_MAX, EndReason, Fate, JobEnd, Usage, judge


def end(code, *, result=None, ending=None, why="", tail=()):
    job_output = JobOutput(now_s=0.0)
    job_output.result = result
    return JobEnd(
        exit_code=code,
        job_output=job_output,
        wall_s=1.0,
        usage=Usage(),
        ending=ending,
        why=why,
        log_tail=tail,
    )


@pytest.mark.parametrize(
    ("code", "ending", "fate", "status", "final"),
    [
        (0, None, Fate.COMPLETE, "done", False),
        (4, None, Fate.COMPLETE, "data_refused", False),
        (3, None, Fate.FAIL, "stopped_by_itself", False),
        (2, None, Fate.FAIL, "wrong_input", True),
        (5, None, Fate.FAIL, "unavailable", False),
        (1, None, Fate.FAIL, "crashed", False),
        (-9, None, Fate.FAIL, "crashed", False),
        # It was done before it heard that it should stop.
        (0, EndReason.STOP, Fate.COMPLETE, "done", False),
        (3, EndReason.STOP, Fate.RELEASE, "stopped", False),
        (0, EndReason.YIELD, Fate.COMPLETE, "done", False),
        (-9, EndReason.YIELD, Fate.RELEASE, "stopped", False),
        # Killed while it was still being loaded, or after the grace period: not its fault.
        (-15, EndReason.STOP, Fate.RELEASE, "stopped", False),
        (-9, EndReason.STOP, Fate.RELEASE, "stopped", False),
        # It sealed what it had, but it was not done in time.
        (3, EndReason.TIMEOUT, Fate.FAIL, "timeout", False),
        (-9, EndReason.STUCK, Fate.FAIL, "stuck", False),
        (-9, EndReason.MEMORY, Fate.FAIL, "memory", False),
        (-9, EndReason.OUTPUT, Fate.FAIL, "output", False),
        # Whatever it made is not ours to hand in.
        (0, EndReason.LEASE_LOST, Fate.DROP, "", False),
    ],
)
def test_the_exit_code_decides(code, ending, fate, status, final):
    verdict = judge(end(code, result={"status": "x"}, ending=ending, why="because"), attempt=1)
    assert (verdict.fate, verdict.status, verdict.final) == (fate, status, final)


def test_success_needs_a_result_line():
    verdict = judge(end(0), attempt=1)
    assert (verdict.fate, verdict.error) == (Fate.FAIL, "it ended without a result line")


def test_an_error_says_how_it_ended_and_its_last_words():
    assert judge(end(-9, tail=["a", "b"]), attempt=1).error == (
        "the job was killed by SIGKILL; its last words: a | b"
    )
    told = judge(end(2, result={"error": "no such board"}, tail=["x"]), attempt=1)
    assert told.error == "the job exited with code 2; no such board"
    assert judge(end(-250), attempt=1).error == "the job was killed by signal 250"
    assert len(judge(end(1, tail=["y" * 9000]), attempt=1).error) == 2000


@pytest.mark.parametrize(
    ("said", "after_s"), [("12.5", 12.5), (7, 7), ("soon", 60), (None, 60), (1e9, 300), (-4, 1)]
)
def test_unavailable_says_when_to_come_again(said, after_s):
    assert judge(end(5, result={"retry_after_s": said}), attempt=1).retry_after_s == after_s


@given(st.integers(1, 10_000))
def test_a_crash_waits_longer_each_time_up_to_a_limit(attempt):
    first, second = (judge(end(1), attempt=n).retry_after_s for n in (attempt, attempt + 1))
    assert 0 < first <= second <= RETRY_S_MAX


def test_an_error_can_be_stored_whatever_the_job_says():
    told = judge(end(2, result={"error": "no \x00 file x\udcff"}), attempt=1).error
    assert told == "the job exited with code 2; no \\x00 file x\\udcff"
