"""What `make test` rests on: of several processes each test is run by one."""

import os
import re
import subprocess
import sys
from pathlib import Path

PLUGINS = Path(__file__).parents[1]
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def server():
    yield
    print("the server has ended")
"""
FILE = """
import pathlib, time

def test_one(server):
    with open(pathlib.Path(__file__).parents[2] / "ran", "a") as ran:
        print(__name__, file=ran)
    time.sleep(0.01)

def test_two(server):
    pass
"""


def test_several_processes_run_each_test_once_and_end_what_they_set_up(tmp_path):
    tests, shared = tmp_path / "tests", tmp_path / "shared"
    shared.mkdir()
    names = [f"{folder}/test_{folder}{number}.py" for folder in "abc" for number in range(5)]
    for name in names:
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text(FILE)
    (tests / "conftest.py").write_text(CONFTEST)
    for folder in "ab":  # the last of each folder was begun by somebody else
        (shared / f"{folder}-test_{folder}4.py").touch()
        names.remove(f"{folder}/test_{folder}4.py")
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "shared_files", f"--share={shared}"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tests), str(tests)]
    environment = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert sorted((tmp_path / "ran").read_text().split()) == sorted(Path(name).stem for name in names)
    passed = [int(found) for text in told for found in re.findall(r"(\d+) passed", text)]
    assert sum(passed) == 2 * len(names)
    assert sum("the server has ended" in text for text in told) == len(passed)
