import json

import pytest
from click.testing import CliRunner

from ringrift.cli.format import money, parse_duration
from ringrift.cli.main import app
from ringrift.errors import ConfigError


@pytest.fixture
def ringrift(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, **environ):
        return CliRunner().invoke(app, [*arguments], env=environ)

    return call


def test_config_show_says_where_each_value_came_from(ringrift, tmp_path):
    (tmp_path / "ringrift.toml").write_text("job_grace_period = 5\n")
    shown = json.loads(ringrift("config", "show", "--json", RINGRIFT_TRACE_DEBUG="yes").stdout)
    settings = shown["settings"]
    assert settings["trace_debug"] == {
        "value": True,
        "source": "environment",
        "variable": "RINGRIFT_TRACE_DEBUG",
        "place": "",
    }
    assert settings["job_grace_period"]["source"] == "file"
    assert settings["job_grace_period"]["place"] == "ringrift.toml"
    assert settings["event_handler_timeout"]["source"] == "default"
    assert settings["dlq_path"]["source"] == "derived"


def test_config_show_prints_a_table_and_points_out_misspelled_variables(ringrift):
    done = ringrift("config", "show", RINGRIFT_TRACE_DEBUGG="1")
    assert "event_handler_timeout" in done.stdout
    assert "RINGRIFT_TRACE_DEBUGG is set, but no setting has that name" in done.stderr


def test_a_wrong_value_is_one_line_and_exit_code_2(ringrift):
    done = ringrift("config", "show", RINGRIFT_HEALTH_PORT="many")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "RINGRIFT_HEALTH_PORT is 'many'" in done.stderr


def test_version_is_printed(ringrift):
    assert ringrift("--version").stdout.startswith("0.")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1w", "1h30", "soon"])
def test_wrong_durations_are_explained(text):
    with pytest.raises(ConfigError, match="such as 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (12.345, "12.35"),
        (0.25, "0.25"),
        (0.0123, "0.012"),
        (0.000004567, "0.0000046"),
    ],
)
def test_money_has_two_digits_that_say_something(value, told):
    assert money(value) == told
