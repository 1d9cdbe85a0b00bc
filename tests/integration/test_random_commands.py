"""Whatever is typed, it is answered: no traceback, no hang. `make commands` tries 2,000 lines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = 40


def test_random_command_lines_end_without_a_traceback(tmp_path):
    result = tmp_path / "result.json"
    argv = [sys.executable, "scripts/random_commands.py", "--lines", str(LINES), "--json", str(result)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    told = json.loads(result.read_text())
    assert told["findings"] == []
    assert sum(told["counts"].values()) == LINES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([b"\xff\xfe"], "not UTF-8"),
        (["status", "--data", b"/tmp/\xff"], "not UTF-8"),
        (["status", "--data", "x" * 5000], "File name too long"),
        (["daemons", "--data", "/dev/null"], "/dev/null"),
        (["doctor", "--quick", "--data", "/nonexistent/folder"], "there is no folder /nonexistent/folder"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words, said, tmp_path):
    argv = [sys.executable, "-m", "ringrift.cli", *words]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=120)
    text = ended.stderr.decode(errors="replace")
    assert ended.returncode == 2, text
    assert said in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize(
    "words",
    [
        ["job", "validate", "--params"],
        ["game", "show", "--config", "square8_2p", "--state"],
    ],
)
def test_deep_json_and_endless_files_are_refused(words, opening, tmp_path):
    deep = tmp_path / "deep.json"
    deep.write_text(opening * 100_000)
    for file, said in ((deep, "deeper than 64 levels"), ("/dev/zero", "no plain file")):
        argv = [sys.executable, "-m", "ringrift.cli", *words, str(file)]
        ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in ended.stderr
        assert said in ended.stderr + ended.stdout
        assert ended.returncode in (2, 4)


def test_a_table_that_run_refuses_is_refused_by_every_command(tmp_path):
    (tmp_path / "ringrift.toml").write_text("[nodes.one]\nssh_port = -1\n")
    for words in (
        ["config", "show"],
        ["status"],
        ["doctor", "--quick"],
        ["data", "ls"],
        ["run", "--for", "1s"],
    ):
        argv = [sys.executable, "-m", "ringrift.cli", *words]
        ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2, words
        assert "[nodes.one]" in ended.stderr
        assert "ssh_port" in ended.stderr


def test_the_doctor_says_when_learning_is_not_installed(tmp_path):
    hidden = (
        "import importlib.util as u; f = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'torch' else f(n, *a)\n"
    )
    program = hidden + "from ringrift.cli.main import app; app.main(['doctor', '--quick'])"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "learning needs torch" in " ".join(ended.stdout.split())
    assert "Nothing wrong was found" not in ended.stdout


@pytest.mark.parametrize(
    "name", ["high_water.json", "coordination/master_loop.pid", "coordination/probes.json"]
)
def test_a_pipe_in_the_place_of_a_small_file_holds_nobody_up(name, tmp_path):
    place = tmp_path / "data" / name
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    for words in (["status"], ["doctor", "--quick"]):
        argv = [sys.executable, "-m", "ringrift.cli", *words, "--data", str(tmp_path / "data")]
        ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in ended.stderr
