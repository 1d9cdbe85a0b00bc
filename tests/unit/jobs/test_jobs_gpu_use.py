"""A job says for how long it has had a GPU."""

import io
import json

import pytest
import torch

from ringrift.jobs.frame import JobSpec, Outcome, Params, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.machine import GpuUse, gpu_use
from ringrift.network.model import chosen_device
from ringrift.process import process_scope


class NoParams(Params, frozen=True, kw_only=True):
    pass


@pytest.fixture(autouse=True)
def fresh():
    process_scope().drop(GpuUse)
    yield
    process_scope().drop(GpuUse)


def lines_of(work):
    out = io.StringIO()
    assert run_job(JobSpec("example", "An example.", NoParams, work), [], out=out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_job_without_a_gpu_says_that_it_had_none():
    def work(job, params):
        assert chosen_device("cpu") == "cpu"
        return Outcome(ExitCode.DONE)

    assert [line["gpu_s"] for line in lines_of(work)] == [0.0, 0.0]


def test_from_the_first_network_on_a_gpu_every_line_says_how_long(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def work(job, params):
        assert chosen_device("auto") == "cuda"
        gpu_use().began_s -= 7.0
        assert chosen_device("cuda") == "cuda"
        return Outcome(ExitCode.DONE)

    started, result = lines_of(work)
    assert started["gpu_s"] == 0.0
    assert 7.0 <= result["gpu_s"] < 60.0
