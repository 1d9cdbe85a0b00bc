"""Every test has a data folder and process-wide objects of its own, and a disk with room."""

import asyncio
import gc
import os
import re
import runpy
from itertools import count
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from ringrift.engine.blocking import BackgroundLoop
from ringrift.engine.opening import EnginesByPath, SharedEngine, close_engine
from ringrift.process import process_scope

pytest_plugins = ["data_servers", "shared_files"]
ROOMY_DISK = Path(__file__).with_name("roomy_disk")


def pytest_configure():
    """How long an example takes says something about the machine; each test as a whole has its time limit.

    So does how full its disk is, and nodes hold work back on a full one: neither this process nor those that
    tests start see the real one.
    """
    runpy.run_path(str(ROOMY_DISK / "sitecustomize.py"))
    paths = [str(ROOMY_DISK), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


def pytest_collection_finish():
    """What is loaded by now stays; a full collection that looked at all of it would take half a second."""
    gc.collect()
    gc.freeze()


def close_what_was_opened():
    """Engines and loops that tests leave open would hold their files until the last test."""
    scope = process_scope()
    if scope.peek(SharedEngine) is not None or scope.peek(EnginesByPath) is not None:
        asyncio.run(close_engine())
    loop = scope.peek(BackgroundLoop)
    if loop is not None and not loop.under_way():
        loop.close()


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory):
    """Make folders with numbers of our own: for the next free one pytest looks at all that there are."""
    numbers = count()
    return lambda name: tmp_path_factory.mktemp(f"{name}-{next(numbers)}", numbered=False)


@pytest.fixture
def tmp_path(request, new_folder):
    return new_folder(re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def own_process_scope(new_folder, monkeypatch):
    """Keep shared objects from leaking between tests, and files out of the working folder."""
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(new_folder("data")))
    monkeypatch.setenv("RINGRIFT_HEALTH_PORT", "0")
    process_scope().clear()
    yield
    close_what_was_opened()
    process_scope().clear()
    structlog.reset_defaults()  # a command under test may have led the log to a file of its own
