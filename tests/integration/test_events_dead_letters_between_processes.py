"""A dead letter belongs to the process that has its subscription, also over `kill -9`."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ringrift.coordination.dead_letter_queue import DeadLetterQueue

PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from ringrift.coordination.dead_letter_queue import run_retry_daemon
    from ringrift.coordination.event_router import get_router

    folder = Path(sys.argv[1])

    async def flaky(event):
        with (folder / "flaky").open("a") as file:
            file.write(event.event_id + "\\n")
        if not (folder / "mended").exists():
            raise OSError("not yet")

    async def good(event):
        with (folder / "good").open("a") as file:
            file.write(event.event_id + "\\n")

    async def main():
        router = get_router()
        router.subscribe("TRAINING_PROGRESS", flaky, "flaky")
        router.subscribe("TRAINING_PROGRESS", good, "good")
        await router.start()
        if not (folder / "started").exists():
            (folder / "started").touch()
            await router.publish("TRAINING_PROGRESS", {"config_key": "hex8_2p", "epoch": 1})
        (folder / "ready").touch()
        await run_retry_daemon(interval_seconds=0.05)

    asyncio.run(main())
    """
)


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def start():
        env = {**os.environ, "RINGRIFT_DATA_DIR": str(tmp_path / "data")}
        (tmp_path / "ready").unlink(missing_ok=True)
        argv = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
        wait_for(lambda: (tmp_path / "ready").exists())
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_letter_survives_its_process_and_is_retried_there_on_request(tmp_path, start):
    process = start()
    flaky = tmp_path / "flaky"
    dlq = DeadLetterQueue(tmp_path / "data" / "coordination" / "dead_letter_queue.db")
    # The event itself and the first, immediate retry, of which the letter knows.
    wait_for(lambda: [letter.retry_count for letter in dlq.get_pending_events()] == [1])
    assert len(flaky.read_text().split()) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    [letter] = dlq.get_pending_events()
    assert (letter.subscription, letter.retry_count) == ("flaky", 1)
    start()
    time.sleep(0.3)
    assert dlq.get_pending_count() == 1  # in backoff, and not delivered again by the log either
    assert len(flaky.read_text().split()) == 2
    (tmp_path / "mended").touch()
    assert dlq.make_due(letter.event_id)
    wait_for(lambda: dlq.get_stats()["recovered"] == 1)
    assert len(flaky.read_text().split()) == 3
    assert len((tmp_path / "good").read_text().split()) == 1
    dlq.close()


HANGS_IN_A_RETRY = textwrap.dedent(
    """
    import asyncio, sys
    from ringrift.coordination.dead_letter_queue import DeadLetterQueue

    async def hang(payload):
        print("retrying", flush=True)
        await asyncio.sleep(1000)

    dlq = DeadLetterQueue(sys.argv[1])
    dlq.register_handler("MY_EVENT", hang)
    asyncio.run(dlq.retry_all())
    """
)


def test_a_killed_retrier_lets_go_of_its_letter_at_once(tmp_path):
    path, seen = tmp_path / "letters.db", []

    async def handle(payload):
        seen.append(payload["n"])

    dlq = DeadLetterQueue(path)
    dlq.register_handler("MY_EVENT", handle)
    dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    argv = [sys.executable, "-c", HANGS_IN_A_RETRY, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "retrying\n"
            assert asyncio.run(dlq.retry_all())["skipped"] == 1
        finally:
            process.kill()
    assert asyncio.run(dlq.retry_all())["recovered"] == 1
    assert seen == [1]
    dlq.close()


def test_the_next_process_under_the_number_of_a_killed_one_has_none_of_its_claims(tmp_path):
    path = tmp_path / "letters.db"
    first = DeadLetterQueue(path)
    letter = first.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    argv = [sys.executable, "-c", HANGS_IN_A_RETRY, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "retrying\n"
        process.kill()
    next_one = DeadLetterQueue(path)
    next_one.register_handler("MY_EVENT", lambda payload: asyncio.sleep(0))
    assert asyncio.run(next_one.retry_event(letter))
    for dlq in (first, next_one):
        dlq.close()
