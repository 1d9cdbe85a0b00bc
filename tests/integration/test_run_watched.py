"""A run that people watch and steer from other terminals."""

import json

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
