"""A run that people watch and steer from other terminals."""

import json
import time

import httpx
import pytest
from test_run_command import DEADLINE_S, ringrift, start

__all__ = ["start"]  # the fixture
pytestmark = pytest.mark.timeout(400)


def test_a_run_is_seen_on_its_page_and_stopped_from_another_terminal(start):
    run = start("--configs", "connect_four_2p", "--workers", "1", "--no-open")
    url = run.wait_until_ready()
    with httpx.stream("GET", f"{url}/events/stream", timeout=DEADLINE_S) as answer:
        lines = answer.iter_lines()
        body = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
        names = {daemon["name"]: daemon["state"] for daemon in body["parts"]["daemons"]}
        assert names["health_server"] == "running"
        told = json.loads(ringrift("status", "--json", data=run.data).stdout)
        assert (told["running"], told["pid"], told["page"]) == (True, run.process.pid, url)
        assert "connect_four_2p" in ringrift("pause", "nope_2p", data=run.data, check=False).stderr
        stopped = json.loads(ringrift("stop", "--json", data=run.data).stdout)
        assert stopped["stopped"] is True
        assert "event: bye" in list(lines), "the page is told that the run was stopped"
    assert run.process.wait(DEADLINE_S) == 0
    assert json.loads(ringrift("status", "--json", data=run.data).stdout)["running"] is False
    assert "connect_four_2p" in run.log.read_text(), "it says what it learns"


def asked(run, *arguments):
    return json.loads(ringrift(*arguments, "--json", data=run.data).stdout)


def until(run, true, what):
    """Look until *true* holds; a limit is for what hangs."""
    ends_s = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < ends_s, f"{what} did not come about:\n{run.log.read_text()[-3000:]}"
        time.sleep(0.3)
    return found


def test_a_pause_and_a_stopped_daemon_hold_on_a_live_run_and_over_its_restart(start):
    config = "connect_four_2p"
    arguments = ("--configs", config, "--workers", "1", "--no-open")
    run = start(*arguments)
    run.wait_until_ready()
    until(run, lambda: asked(run, "queue").get("selfplay"), "an order of games")
    assert asked(run, "pause", "--reason", "a look at it")["paused"]
    until(run, lambda: asked(run, "status")["configs"][config]["paused"], "the pause in the status")
    stopped = asked(run, "daemons", "stop", "selfplay_coordinator", "--reason", "a test")
    assert (stopped["problem"], stopped["running"]) == ("", True)
    assert stopped["done_s"]
    assert ringrift("stop", data=run.data).returncode == 0
    assert run.process.wait(DEADLINE_S) == 0

    run = start(*arguments)
    run.wait_until_ready()
    row = asked(run, "daemons")["daemons"]["selfplay_coordinator"]
    assert (row["state"], row["request"]["reason"]) == ("stopped", "a test")
    assert asked(run, "queue", "list", "--state", "running") == []
    assert asked(run, "resume")["resumed"] == ["*"]

    def resting():
        stages = {each["stage"]: each["reason"] for each in asked(run, "explain", config)["stages"]}
        return "SELFPLAY_COORDINATOR is stopped" in stages.get("selfplay", "")

    until(run, resting, "the reason why no games are ordered")
    told = [each["text"] for each in asked(run, "status")["findings"] if each["check"] == "stopped_daemons"]
    assert "SELFPLAY_COORDINATOR is stopped" in told[0]
    assert asked(run, "daemons", "start", "selfplay_coordinator")["problem"] == ""
    assert asked(run, "daemons")["daemons"]["selfplay_coordinator"]["state"] == "running"
    until(run, lambda: asked(run, "queue", "list", "--state", "running"), "that it goes on")
    assert "every decision follows" in ringrift("replay", config, data=run.data).stdout
