"""What a command loads, and how the command line answers what it does not understand."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from run_folder import write_status

from ringrift.cli.main import COMMANDS, app
from ringrift.coordination.coordinator_config import get_settings
from ringrift.testing.sample_run import SampleRun

SLOW_TO_LOAD = ("asyncio", "psutil", "structlog", "starlette", "opentelemetry")


def loaded_by(*arguments):
    """The modules that a command has loaded when it ends."""
    script = f"""
import sys
from ringrift.cli.main import app
try:
    app({list(arguments)!r}, prog_name="ringrift")
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_status_loads_nothing_slow(form):
    write_status(SampleRun(configs=("square8_2p",)))
    told, modules = loaded_by("status", "--data", str(get_settings().data_dir), *form)
    assert "square8_2p" in told
    assert modules.isdisjoint(SLOW_TO_LOAD)
    assert ("rich" in modules) == (not form)


def test_help_lists_every_command_without_loading_one():
    told, modules = loaded_by("--help")
    for name, place in COMMANDS.items():
        assert name in told
        assert place.entry.partition(":")[0] not in modules
    assert modules.isdisjoint(SLOW_TO_LOAD)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says_and_has_help(name):
    command = COMMANDS[name].command()
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    if name not in ("job", "play"):  # their help is the job's
        shown = CliRunner().invoke(app, [name, "--help"], prog_name="ringrift")
        assert shown.exit_code == 0
        assert shown.stdout.startswith(f"Usage: ringrift {name}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["stauts"], "did you mean 'status'"),
        (["status", "--jsno"], "--json"),
        (["explain"], "missing argument 'CONFIG'"),
        (["events", "tail", "--since", "-1"], "--since"),
        (["run", "--workers", "many"], "'many' is not a valid integer"),
        (["models", "show"], "missing argument 'CONFIG'"),
        (["queue", "shw", "x"], "'shw'"),
    ],
)
def test_wrong_input_is_one_line_that_says_where_help_is(given, said):
    done = CliRunner().invoke(app, given, prog_name="ringrift")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ringrift: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr.lower() or said in done.stderr
    assert "--help`" in done.stderr


def test_no_command_shows_the_help():
    done = CliRunner().invoke(app, [], prog_name="ringrift")
    assert done.exit_code == 2
    assert "Commands:" in done.stderr


@pytest.mark.parametrize("arguments", [["events", "tail", "--no-follow"], ["status"], ["daemons"], ["queue"]])
def test_looking_at_a_folder_makes_none(tmp_path, arguments):
    CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "nowhere")])
    assert not (tmp_path / "nowhere").exists()


def test_an_option_before_the_subcommand_counts_as_one_behind_it():
    write_status(SampleRun(configs=("square8_2p",)))
    runner = CliRunner()
    assert runner.invoke(app, ["queue", "--json", "list"]).stdout.strip() == "[]"
    assert "Nothing runs" in runner.invoke(app, ["queue", "list"]).stdout


def test_a_misspelled_event_is_pointed_out_and_others_are_not():
    write_status(SampleRun(configs=("square8_2p",)))
    tail = ["events", "tail", "--no-follow", "--type"]
    wrong = CliRunner().invoke(app, [*tail, "TRAINING_COMPLETE_"])
    assert (wrong.exit_code, "did you mean TRAINING_COMPLETED" in wrong.stderr) == (0, True)
    assert CliRunner().invoke(app, [*tail, "TRAINING_COMPLETED"]).stderr == ""


def test_a_wrong_profile_is_named_before_anything_is_made(tmp_path):
    given = ["run", "--profile", "nope", "--plain", "--data", str(tmp_path / "new")]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    assert "--profile is 'nope'; it must be one of" in refused.stderr
    assert "standard" in refused.stderr
    assert not (tmp_path / "new").exists()


def test_the_doctor_of_a_folder_without_a_run_says_so_and_knows_its_games(tmp_path):
    folder = str(tmp_path)
    told = CliRunner().invoke(app, ["doctor", folder, "--quick"])
    assert told.exit_code == 0
    assert f"There is no run in {folder} yet" in told.stdout
    assert "Nothing wrong was found with the machine; there is no run here" in told.stdout
    missing = CliRunner().invoke(app, ["doctor", f"{folder}/nowhere", "--quick"])
    assert (missing.exit_code, "there is no folder" in missing.stderr) == (2, True)
    refused = CliRunner().invoke(app, ["doctor", folder, "--quick", "--config", "nope"])
    assert (refused.exit_code, "'nope' is no config" in refused.stderr) == (2, True)


def test_a_question_that_is_not_answered_with_yes_changes_nothing():
    write_status(SampleRun(configs=("square8_2p",)))
    done = CliRunner().invoke(app, ["events", "dlq", "drop", "all"], input="n\n")
    assert (done.exit_code, "Nothing was changed." in done.stderr) == (1, True)


def test_an_interrupted_command_ends_without_a_traceback(monkeypatch):
    def interrupt(_self):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(COMMANDS["status"]), "command", interrupt)
    done = CliRunner().invoke(app, ["status"])
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (130, "", "")
