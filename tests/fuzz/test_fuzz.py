"""All kept inputs and a share of new ones run clean; the harness finds what is planted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = sorted(path.stem for path in (ROOT / "tests/fuzz/targets").glob("*.py") if path.stem[0] != "_")
SECONDS_IN_ALL = 30.0  # the seed is fixed: more of them would be the same inputs every time


def fuzz(*arguments, planted=""):
    environment = {**os.environ, "PLANTED": planted}
    command = [sys.executable, "-m", "tests.fuzz", *arguments, "--seed", "1"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize("name", TARGETS)
def test_outside_data_is_read_or_refused(name, tmp_path):
    share = str(SECONDS_IN_ALL / len(TARGETS))
    options = ["--seconds", share, "--corpus-stays", "--engine", "own", "--out", str(tmp_path)]
    ended = fuzz(name, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no finding" in ended.stdout


@pytest.mark.parametrize("planted", ["ERROR", "HANG", "DIED", "MEMORY", "SLOW"])
def test_a_planted_fault_is_found_and_repeats(planted, tmp_path):
    options = ["--seconds", "20", "--findings-max", "1", "--engine", "own", "--out", str(tmp_path)]
    ended = fuzz("_planted", *options, planted=planted)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = [path for path in (tmp_path / "findings" / "_planted").iterdir() if path.suffix != ".txt"]
    assert [path.name.split("-")[0] for path in found] == [planted.lower()]
    assert fuzz("_planted", "--replay", str(found[0]), planted=planted).returncode == 1
    assert fuzz("_planted", "--replay", str(found[0]), planted="").returncode == 0
