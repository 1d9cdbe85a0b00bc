"""A real disk that fills up under a real run, and has room again."""

import asyncio
import errno
import os
import subprocess
from contextlib import contextmanager

import pytest
from loop_under_test import Killer, until, watched_loop

from ringrift.cli.command import EXIT_DISK_FULL

SIZE = "24m"


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount; tests/unit/engine/test_engine_full_disk.py needs no rights")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def filled(folder):
    path = folder / "filler"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            try:
                os.write(descriptor, bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
        yield
    finally:
        os.close(descriptor)
        path.unlink()


def said(loop, what):
    return [line for line in loop.log.read_text().splitlines() if what in line]


@pytest.mark.timeout(300)
async def test_it_is_said_once_the_run_goes_on_when_there_is_room_and_the_exit_code_tells(
    small_disk, tmp_path
):
    async with watched_loop(small_disk, tiny=True) as (loop, audit):
        loop.log = tmp_path / "run.log"
        killer = Killer(loop, audit, seed=1, tiny=True)
        loop.start()
        await killer.goes_on()
        with filled(small_disk):
            await until(lambda: met(loop), "a full disk", loop)
            await asyncio.sleep(3)
        await killer.goes_on()
        await until(lambda: has_room(loop), "room again", loop)
        with filled(small_disk):
            await until(lambda: met(loop, times=2), "a full disk", loop)
            code = await loop.end()
        assert code == EXIT_DISK_FULL, loop.last_words()
        words = loop.log.read_text()
        assert "Traceback" not in words
        assert len(said(loop, "disk.full")) == 2
        assert len([line for line in words.splitlines() if "no space left" in line]) == 2
        assert words.splitlines()[-1].startswith("ringrift: the disk with")
        assert await audit.look() == []


async def met(loop, times=1):
    return len(said(loop, "disk.full")) >= times


async def has_room(loop):
    return bool(said(loop, "disk.has_room_again"))
