"""`ringrift run` as a user starts, watches, kills and restarts it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 60.0
pytestmark = pytest.mark.timeout(400)


def ringrift(*arguments, data, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "ringrift.cli", *arguments],
        env=environment(data),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def environment(data):
    return {**os.environ, "RINGRIFT_DATA_DIR": str(data), "RINGRIFT_HEALTH_PORT": "0", "NO_COLOR": "1"}


class Run:
    """A control process in the background."""

    def __init__(self, data, *arguments):
        self.data = Path(data)
        self.log = self.data.parent / f"{self.data.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ringrift.cli", "run", "--plain", *arguments],
                env=environment(data),
                stdout=log,
                stderr=log,
            )

    def url(self):
        """Wait until the probes listen, and say where."""
        file = self.data / "coordination" / "probes.json"
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            if file.exists():
                address = json.loads(file.read_text())
                if address["pid"] == self.process.pid:
                    return address["url"]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no probes: {self.log.read_text()}")

    def wait_until_ready(self):
        url, end_s = self.url(), time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            if self.get(f"{url}/readyz")[0] == 200:
                return url
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.get(f'{url}/readyz')}\n{self.log.read_text()}")

    def get(self, url):
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def token(self):
        return (self.data / "http_token").read_text(encoding="utf8").strip()

    def post_event(self, url, event_type, **payload):
        body = json.dumps({"event_type": event_type, "payload": payload, "source": "test"}).encode()
        request = urllib.request.Request(
            f"{url}/event",
            data=body,
            headers={"content-type": "application/json", "authorization": f"Bearer {self.token()}"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.loads(answer.read())["event_id"]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def start(tmp_path):
    runs = []

    def begin(*arguments, data="data"):
        runs.append(Run(tmp_path / data, *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(DEADLINE_S)


def test_a_user_starts_watches_and_stops_it(start):
    run = start()
    url = run.wait_until_ready()
    listed = json.loads(ringrift("daemons", "--json", data=run.data).stdout)
    assert listed["control_process"]
    states = {name: row["state"] for name, row in listed["daemons"].items()}
    assert states["event_router"] == states["health_server"] == states["dlq_retry"] == "running"
    assert states["cluster_monitor"] == "unavailable"
    assert "capability not built yet: node_health" in listed["daemons"]["cluster_monitor"]["reason"]
    assert 'daemon_count{state="running"}' in run.get(f"{url}/metrics")[1]
    assert run.end() == 0
    after = json.loads(ringrift("daemons", "--json", data=run.data).stdout)
    assert not after["control_process"]


def test_a_control_process_without_probes_is_seen_and_nothing_is_made_up_about_it(start):
    run, end_s = start("--profile", "minimal"), time.monotonic() + DEADLINE_S
    while "run.started" not in run.log.read_text():
        assert time.monotonic() < end_s, run.log.read_text()
        time.sleep(0.05)
    listed = json.loads(ringrift("daemons", "--json", data=run.data).stdout)
    assert listed["control_process"]
    assert listed["daemons"]["event_router"]["state"] == "unknown"
    assert "answers no probes" in ringrift("daemons", data=run.data).stdout
    assert run.end() == 0


def test_an_event_posted_over_http_is_seen_by_events_tail(start):
    run = start()
    url = run.wait_until_ready()
    event_id = run.post_event(url, "HOST_ONLINE", node_id="rented-1", host_type="gpu")
    lines = ringrift("events", "tail", "--no-follow", "--json", "--type", "HOST_ONLINE", data=run.data).stdout
    (event,) = [json.loads(line) for line in lines.splitlines()]
    assert event["event_id"] == event_id
    assert event["payload"]["node_id"] == "rented-1"


def test_a_second_control_process_on_the_same_folder_is_refused(start):
    first = start()
    first.wait_until_ready()
    second = ringrift("run", "--plain", data=first.data, check=False)
    assert second.returncode == 2
    assert f"process {first.process.pid}" in second.stderr
    assert first.end() == 0


def test_killed_with_9_and_started_again_nothing_has_to_be_cleaned_up(start):
    first = start()
    url = first.wait_until_ready()
    first.post_event(url, "HOST_ONLINE", node_id="a")
    children = psutil.Process(first.process.pid).children(recursive=True)
    assert first.end(signal.SIGKILL) == -9
    _gone, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert alive == []
    second = start()
    second.wait_until_ready()
    tail = ringrift("events", "tail", "--no-follow", "--json", "--type", "HOST_ONLINE", data=second.data)
    assert len(tail.stdout.splitlines()) == 1
    assert second.end() == 0


def test_started_again_in_another_way_it_hears_what_was_said_meanwhile(start, monkeypatch):
    monkeypatch.setenv("RINGRIFT_EVENT_BACKLOG", "0")
    first = start()
    first.wait_until_ready()
    assert first.end() == 0
    say = "import ringrift; ringrift.get_router().publish_sync('HOST_ONLINE', {'node_id': 'a'}, 'test')"
    subprocess.run([sys.executable, "-c", say], env=environment(first.data), check=True, timeout=DEADLINE_S)
    second = start("--for", "600s")
    url, end_s = second.wait_until_ready(), time.monotonic() + DEADLINE_S
    while 'routed_total{event="HOST_ONLINE"} 1.0' not in second.get(f"{url}/metrics")[1]:
        assert time.monotonic() < end_s, "the event was not delivered"
        time.sleep(0.05)


def test_it_goes_on_and_stops_as_asked_when_nobody_reads_its_log_any_more(tmp_path):
    command = [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--for", "1s"]
    with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE) as process:
        try:
            process.stderr.readline()
            process.stderr.close()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_it_stops_by_itself_after_the_given_time(start):
    run = start("--for", "1s")
    assert run.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "--plain", "--for", "soon"), "--for is 'soon'"),
        (("run", "--plain", "--profile", "nope"), "nope"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, arguments, complaint):
    done = ringrift(*arguments, data=tmp_path / "data", check=False)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
