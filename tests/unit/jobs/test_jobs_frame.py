"""The frame: what a job says, when it says it, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from jobs_samples import run as run_kind

from ringrift.errors import ConfigError, Conflict, Corrupt, StorageFull, Unavailable
from ringrift.files import file_sha256
from ringrift.jobs.evaluation.evaluate import EVALUATE
from ringrift.jobs.evaluation.tournament import TOURNAMENT
from ringrift.jobs.files import alone, describe, scratch_database, seal_json, sealing
from ringrift.jobs.frame import PROGRESS_EVERY_S, JobSpec, Outcome, Params, cpu_seconds, parse_params, run_job
from ringrift.jobs.kinds import KINDS, ExitCode, job_main
from ringrift.jobs.selfplay.selfplay import SELFPLAY
from ringrift.jobs.training.train import TRAIN


class ExampleParams(Params, frozen=True, kw_only=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=9, description="How many.")]
    names: tuple[str, ...] = ()
    folder: Path | None = None
    limit: Annotated[float, msgspec.Meta(gt=0)] | None = None
    flag: bool = False


def run(work, argv=("--count", "3")):
    out = io.StringIO()
    code = run_job(JobSpec("example", "An example.", ExampleParams, work), list(argv), out=out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def parse(*argv):
    return parse_params("example", "An example.", ExampleParams, argv)


def test_a_job_says_started_and_one_result():
    code, lines = run(lambda job, params: Outcome(ExitCode.DONE, {"counted": params.count}))
    assert code == 0
    assert [line["event"] for line in lines] == ["started", "result"]
    assert lines[0]["params"]["count"] == 3
    assert (lines[-1]["status"], lines[-1]["counted"], lines[-1]["artifacts"]) == ("done", 3, [])
    assert lines[-1]["cpu_s"] > 0


def test_a_full_scratch_disk_is_no_fault_of_the_program():
    def work(job, params):
        with closing(scratch_database("CREATE TABLE much (content BLOB)")) as db:
            db.execute("PRAGMA max_page_count = 10")
            db.execute("INSERT INTO much VALUES (zeroblob(1000000))")
        return Outcome()

    code, lines = run(work)
    assert (code, lines[-1]["status"], lines[-1]["error_type"]) == (5, "unavailable", "StorageFull")


def test_progress_has_rate_and_time_left():
    def work(job, params):
        job.stage("counting", total=4, done=1)
        time.sleep(0.05)
        job.progress(4, extra="more")
        return Outcome()

    last = run(work)[1][-2]
    assert (last["stage"], last["done"], last["total"], last["extra"]) == ("counting", 4, 4, "more")
    assert 0 < last["rate"] <= 60
    assert last["eta_s"] == 0


def test_progress_in_quick_succession_is_thinned_out_but_the_last_is_said():
    def work(job, params):
        job.stage("counting", total=1000)
        for done in range(1, 1001):
            job.progress(done)
        return Outcome()

    began_s = time.monotonic()
    said = [line for line in run(work)[1] if line["event"] == "progress"]
    assert len(said) <= 4 + (time.monotonic() - began_s) / PROGRESS_EVERY_S
    assert said[-1]["done"] == 1000


def test_a_silent_job_has_heartbeats_that_say_how_long_it_was_silent():
    def work(job, params):
        job.stage("thinking")
        time.sleep(1.5)
        return Outcome()

    began_s = time.monotonic()

    beats = [
        line
        for line in run(work, ["--count", "1", "--heartbeat-s", "0.1"])[1]
        if line["event"] == "heartbeat"
    ]
    assert 2 <= len(beats) <= 1.5 * (time.monotonic() - began_s) / 0.1
    assert beats[-1]["idle_s"] > beats[0]["idle_s"] > 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), 2),
        (Corrupt("x", found="broken", advice="Fetch it"), 4),
        (StorageFull("full"), 5),
        (Unavailable("later"), 5),
        (Conflict("somebody"), 5),
    ],
)
def test_errors_end_with_the_code_of_their_meaning(error, code):
    def work(job, params):
        raise error

    found, lines = run(work)
    assert found == code == lines[-1]["exit_code"]
    assert lines[-1]["error"] == str(error)


def test_a_fault_of_the_program_leaves_a_result_and_is_not_swallowed():
    out = io.StringIO()

    def work(job, params):
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError):
        run_job(JobSpec("example", "", ExampleParams, work), ["--count", "1"], out=out)
    assert json.loads(out.getvalue().splitlines()[-1])["status"] == "crashed"


def test_sigterm_is_a_request_that_the_job_answers():
    def work(job, params):
        os.kill(os.getpid(), signal.SIGTERM)
        while not job.stop.requested:
            time.sleep(0.01)
        return Outcome(ExitCode.STOPPED)

    code, lines = run(work)
    assert (code, lines[-1]["status"], lines[-1]["reason"]) == (3, "stopped", "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_job_with_nothing_to_seal_leaves_at_a_stop_point():
    def work(job, params):
        job.stop.request("enough")
        job.stop_point()
        raise AssertionError

    assert run(work)[0] == 3


def test_when_nobody_reads_the_job_is_asked_to_stop():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    def work(job, params):
        return Outcome(ExitCode.STOPPED if job.stop.requested else ExitCode.DONE)

    assert run_job(JobSpec("example", "", ExampleParams, work), ["--count", "1"], out=Closed()) == 3


def test_what_libraries_print_does_not_disturb_the_protocol(tmp_path):
    program = """
import os, subprocess, sys
from ringrift.jobs.frame import JobSpec, Outcome, run_job
from ringrift.jobs.frame import Params
def work(job, params):
    print("a library says hello")
    os.write(1, b"and so does its C part\\n")
    return Outcome()
sys.exit(run_job(JobSpec("example", "", Params, work), []))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["started", "result"]
    assert "hello" in done.stderr


# Parameters.


def test_options_win_over_the_file(tmp_path):
    file = tmp_path / "params.json"
    file.write_text(json.dumps({"count": 5, "names": ["a"], "folder": "/x"}))
    params = parse("--params", str(file), "--count", "7", "--flag", "--limit", "2.5")
    assert (params.count, params.names, params.folder) == (7, ("a",), Path("/x"))
    assert (params.flag, params.limit) == (True, 2.5)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), "missing --count"),
        (("--count", "10"), "<= 9"),
        (("--count", "two"), "int"),
        (("--count", "1", "--limit", "0"), "> 0"),
        (("--count", "1", "--params", "/no/such/file"), "No such file"),
    ],
)
def test_wrong_parameters_are_named(argv, told):
    with pytest.raises(ConfigError, match=told):
        parse(*argv)


def test_an_unknown_field_is_refused(tmp_path):
    file = tmp_path / "params.json"
    file.write_text('{"count": 1, "cuont": 2}')
    with pytest.raises(ConfigError, match="cuont"):
        parse("--params", str(file))
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        parse("--params", str(file))
    file.write_text("{")
    with pytest.raises(ConfigError, match="params"):
        parse("--params", str(file))


def test_wrong_parameters_still_give_a_result():
    code, lines = run(lambda job, params: Outcome(), ["--count", "99"])
    assert (code, [line["event"] for line in lines]) == (2, ["result"])


def test_every_kind_has_help(capsys):
    for kind in KINDS:
        with pytest.raises(SystemExit) as left:
            job_main(kind)(["--help"])
        assert left.value.code == 0
        assert kind in capsys.readouterr().out
    with pytest.raises(ConfigError, match="selfplay"):
        job_main("nonsense")


# Sealed files.


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"

    def fails_half_way():
        with sealing(path) as part:
            part.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_half_way()
    assert list(tmp_path.iterdir()) == []
    seal_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert describe(path, "thing", rows=3).as_json()["sha256"] == file_sha256(path)


def test_nothing_is_sealed_where_a_file_lies_in_place_of_the_folder(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ConfigError, match="file cannot be written"), sealing(blocked / "x") as part:
        part.touch()


def test_only_one_process_at_a_time(tmp_path):
    lock = alone(tmp_path / "x.lock")
    with lock, pytest.raises(Conflict, match="another process"), alone(tmp_path / "x.lock"):
        pass
    with alone(tmp_path / "x.lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_dead_holder_holds_nothing(tmp_path):
    program = """
import os, sys
from pathlib import Path
from ringrift.jobs.files import alone
with alone(Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.lock")], timeout=60, check=False)
    with alone(tmp_path / "x.lock"):
        pass


def test_processor_time_grows():
    before = cpu_seconds()
    sum(range(3_000_000))
    assert cpu_seconds() > before


@pytest.mark.parametrize(
    ("spec", "argv"),
    [
        (SELFPLAY, ("--games", 1, "--out", "taken")),
        (EVALUATE, ("--candidate", "random", "--opponents", "random", "--out", "taken")),
        (TOURNAMENT, ("--players", "random", "mcts:1", "--out", "taken")),
        (TRAIN, ("--samples", "none.npz", "--out", "taken/model.safetensors")),
    ],
    ids=lambda value: value.kind if isinstance(value, JobSpec) else "",
)
def test_a_file_where_a_folder_should_be_is_wrong_input(tmp_path, monkeypatch, spec, argv):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    code, result = run_kind(spec, "--config", "connect_four_2p", *argv)
    assert (code, result["status"]) == (2, "wrong_input")
    assert "taken" in result["error"]


def test_a_job_that_fails_on_a_name_that_is_not_utf_8_says_so(tmp_path):
    def refuses(job, params):
        raise ConfigError(f"no samples in {tmp_path / os.fsdecode(b'shard-' + bytes([255]))}")

    def crashes(job, params):
        raise ValueError(os.fsdecode(b"shard-" + bytes([255])))

    code, lines = run(refuses)
    assert code == ExitCode.WRONG_INPUT
    assert lines[-1]["error"].endswith("shard-\\udcff")
    out = io.StringIO()
    with pytest.raises(ValueError, match="shard"):
        run_job(JobSpec("example", "An example.", ExampleParams, crashes), ["--count", "3"], out=out)
    assert json.loads(out.getvalue().splitlines()[-1])["error"] == "ValueError: shard-\\udcff"
    _, lines = run(
        lambda job, params: Outcome(
            ExitCode.DONE, {"seen": [os.fsdecode(b"shard-" + bytes([255])), 1, 2.5, None]}
        )
    )
    assert lines[-1]["seen"] == ["shard-\\udcff", 1, 2.5, None]
