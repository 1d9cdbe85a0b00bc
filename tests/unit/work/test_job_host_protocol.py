"""What goes between a worker and the host of its jobs, with a real host and jobs that load nothing."""

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import ringrift
from ringrift.errors import Unavailable
from ringrift.jobs.host import ROOM_BYTES, ROOM_VARIABLE, fits_in_host
from ringrift.runtime import Command, SystemRuntime
from ringrift.work.job.host import JobHost

LIMIT_S = 120
OWN = {"RINGRIFT_JOB_ITEM": "an item", "RINGRIFT_JOB_KIND": "a kind"}


class Host:
    """A host at one end of a socket."""

    def __init__(self, folder, *, later="", **environ):
        self.folder, self.base = folder, {"PATH": os.environ["PATH"], **environ}
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(LIMIT_S)
        with theirs, (folder / "host.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ringrift.jobs.host", str(theirs.fileno()), "", later],
                env={**self.base, ROOM_VARIABLE: " " * ROOM_BYTES},
                pass_fds=(theirs.fileno(),),
                stderr=log,
                start_new_session=True,
            )
        assert self.hear() == {"type": "ready"}

    def hear(self):
        return json.loads(self.channel.recv(65_536) or "null")

    def ask(self, *argv, number=1, folder=None, stdin=b"", **env):
        (self.folder / "stdin").write_bytes(stdin)
        order = {"type": "start", "number": number, "argv": argv, "folder": str(folder or self.folder)}
        order["env"] = {**self.base, **OWN, **env}
        with (
            (self.folder / "stdin").open("rb") as given,
            (self.folder / "stdout").open("wb") as out,
            (self.folder / "stderr").open("wb") as err,
        ):
            streams = [given.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(self.channel, [json.dumps(order).encode()], streams)
            return self.hear()

    def run(self, *argv, **fields):
        assert self.ask(*argv, **fields)["type"] == "started"
        return self.hear()

    def said(self, name):
        return (self.folder / name).read_text()


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.channel.close()
    assert made.process.wait(LIMIT_S) == 0, made.said("host.log")


def test_jobs_end_with_the_codes_and_words_of_the_program(host):
    ended = host.run("--help")
    assert (ended["type"], ended["number"], ended["code"]) == ("ended", 1, 0)
    assert ended["cpu_s"] < LIMIT_S
    assert "selfplay" in host.said("stdout")
    assert host.said("stderr") == ""
    assert host.run("no-such-kind", number=2)["code"] == 2
    assert "there is no job 'no-such-kind'" in host.said("stderr")
    assert host.said("host.log") == ""


def test_what_cannot_be_started_is_refused_and_the_next_order_is_not(host):
    refused = host.ask("--help", folder=host.folder / "gone")
    assert (refused["type"], refused["outdated"]) == ("refused", False)
    assert "No such file" in refused["reason"]
    assert host.run("--help", number=2)["code"] == 0


def test_a_host_whose_files_have_changed_says_so(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(
        Path(ringrift.__file__).parent, source / "ringrift", ignore=shutil.ignore_patterns("__py*")
    )
    host = Host(tmp_path, PYTHONPATH=str(source), PYTHONDONTWRITEBYTECODE="1")
    assert host.run("--help")["code"] == 0
    with (source / "ringrift" / "jobs" / "kinds.py").open("a") as file:
        file.write("# a later version\n")
    refused = host.ask("--help", number=2)
    assert (refused["type"], refused["outdated"]) == ("refused", True)
    host.process.kill()
    host.process.wait(LIMIT_S)
    host.channel.close()


def test_an_order_that_is_too_large_for_a_host_is_noticed_before():
    argv = ["selfplay", "--params", "-"]
    assert fits_in_host(argv, {"PATH": "x" * 20_000, "OUT": "y" * 1000}, ["OUT", "NOT_SET"])
    assert not fits_in_host(argv, {"PATH": "x", "OUT": "y" * ROOM_BYTES}, ["OUT"])
    assert not fits_in_host(argv, {"PATH": "x" * 60_000}, ["OUT"])


def hosts():
    found = psutil.Process().children()
    return [each for each in found if "ringrift.jobs.host" in each.cmdline()]


def listing(folder):
    """A job that lists the kinds of jobs."""
    given, out = folder / "params", folder / "out"
    given.touch()
    out.mkdir(exist_ok=True)
    argv = (sys.executable, "-m", "ringrift.jobs", "--help")
    env = {"PATH": os.environ["PATH"], **OWN}
    return Command(argv=argv, env=env, cwd=out, input=given, output=folder / "log", piped=True)


async def test_an_order_that_is_given_up_leaves_nothing_and_a_dead_host_is_replaced(tmp_path):
    host = JobHost(SystemRuntime(), folder=tmp_path / "hosts", name="w", kinds=None, jobs_max=10)
    try:
        child = await host.spawn(listing(tmp_path))
        assert b"selfplay" in await child.read(10_000)
        assert await child.wait() == 0
        (process,) = hosts()
        process.send_signal(signal.SIGSTOP)
        asked = asyncio.create_task(host.spawn(listing(tmp_path)))
        await asyncio.sleep(0.1)
        asked.cancel()
        await asyncio.wait({asked})
        process.send_signal(signal.SIGCONT)
        assert await (await host.spawn(listing(tmp_path))).wait() == 0
        while process.children():  # until the test's own limit
            await asyncio.sleep(0.02)

        process.send_signal(signal.SIGSTOP)
        asked = asyncio.create_task(host.spawn(listing(tmp_path)))
        await asyncio.sleep(0.1)
        process.kill()
        with pytest.raises(Unavailable, match="died"):
            await asked
        assert await (await host.spawn(listing(tmp_path))).wait() == 0
        assert [each.pid for each in hosts()] != [process.pid]
    finally:
        await host.close()
    assert hosts() == []


def test_a_worker_that_is_gone_before_it_heard_everything_ends_the_host_and_its_jobs(host):
    started = host.ask("play", "--help", number=1)
    job = psutil.Process(started["pid"])
    select.select([host.channel], [], [], LIMIT_S)  # the end of the job is said, and nobody reads it
    host.channel.close()
    assert host.process.wait(LIMIT_S) == 0, host.said("host.log")
    assert not job.is_running()


def test_a_library_that_cannot_be_loaded_is_the_trouble_of_the_jobs_that_need_it(tmp_path):
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text('raise OSError("libcudart.so.12: cannot open it")\n')
    host = Host(tmp_path, later="train", PYTHONPATH=str(broken))
    end_s = time.monotonic() + LIMIT_S
    while "libcudart" not in host.said("host.log") and time.monotonic() < end_s:
        time.sleep(0.05)
    assert host.run("--help")["code"] == 0
    assert host.run("train", "--help", number=2)["code"] == 1
    assert "libcudart" in host.said("stderr")
    host.channel.close()
    assert host.process.wait(LIMIT_S) == 0, host.said("host.log")
