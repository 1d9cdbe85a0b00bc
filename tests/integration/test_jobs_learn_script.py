"""The learning script: stopped, continued, evaluated and plotted."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ringrift.games.registry import load_game
from ringrift.jobs.training.learning_loop import LearningConfig, LearningLoop
from ringrift.search.contract import SearchConfig
from ringrift.search.selfplay import SelfplayConfig

SCRIPT = Path(__file__).parents[2] / "scripts" / "learn.py"


def learn(*argv, **options):
    command = [sys.executable, str(SCRIPT), *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process):
    out, err = process.communicate(timeout=110)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Processor time counts compilation too; have it done before a test counts on a few seconds."""
    torch.set_num_threads(1)
    selfplay = SelfplayConfig(search=SearchConfig(simulations=8), slots=4)
    loop = LearningLoop(load_game("connect_four_2p"), LearningConfig(selfplay=selfplay), seed=0)
    loop.advance(lambda: loop.games >= 4)


@pytest.mark.timeout(400)
def test_a_run_is_stopped_continued_and_judged(tmp_path):
    train = ("train", "--config", "connect_four_2p", "--seed", 3, "--out", tmp_path, "--simulations", 8)
    train = (*train, "--slots", 16, "--batch", 32)
    process = learn(*train, "--cpu-s", 3000, "--snapshots", 4)
    told = json.loads(process.stdout.readline())
    assert told["event"] == "progress"
    process.send_signal(signal.SIGTERM)
    code, lines, err = finish(process)
    assert code == 3, err
    end_s = int(max(line["cpu_s"] for line in (told, *lines))) + 8  # a slow machine spends some on its start
    code, lines, err = finish(learn(*train, "--cpu-s", end_s, "--snapshots", 4))
    assert code == 0, err
    assert lines[0]["event"] == "resumed"
    assert lines[-1]["event"] == "snapshot"
    assert lines[-1]["cpu_s"] >= end_s
    assert lines[-1]["games"] > lines[0]["games"]
    code, lines, err = finish(learn("evaluate", "--out", tmp_path, "--against", "random", "--games", 60))
    assert code == 0, err
    assert {line["cpu_s"] for line in lines} == {4, end_s}
    code, lines, err = finish(learn("evaluate", "--out", tmp_path, "--against", "random", "--games", 60))
    assert (code, lines) == (0, []), err
    code, lines, err = finish(learn("plot", "--out", tmp_path))
    assert code == 0, err
    assert lines[-1]["mean"] > 0.5
    assert "<polyline" in (tmp_path / "strength.svg").read_text()


def test_a_run_is_not_continued_with_other_settings(tmp_path):
    argv = ("train", "--config", "connect_four_2p", "--out", tmp_path, "--cpu-s", 1)
    assert finish(learn(*argv))[0] == 0
    code, _, err = finish(learn(*argv, "--lr", 1))
    assert code == 2
    assert "lr" in err
