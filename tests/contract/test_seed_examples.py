"""The code examples of the documents run as printed.

Every fenced Python block of the API reference and of the package's README stands in the manifest below, in
order: it runs, or it belongs to a capability that is not built yet. A block that is not listed fails, and so
does one marked as not built that has begun to work. Names that a document leaves to its reader
(`on_model_promoted`, `MyCustomDaemon`) come from the prelude; blocks of one document share their names, as
they do for a reader who types them in.
"""

import ast
import asyncio
import inspect
import os
import queue
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app._table import PlannedModule
from ringrift.capabilities import capability
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine
from ringrift.events.event import EventSource, RouterEvent
from ringrift.status import HealthCheckResult

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"
ENDLESS_S = 0.2  # long enough for a call that never returns to be under way

RUNS = "runs"
ENDLESS = "runs until it is stopped"

MANIFEST = {
    "api_reference.md": [
        ("Import", RUNS),
        ("Getting the Manager", RUNS),
        ("Starting Daemons", RUNS),
        ("Stopping Daemons", RUNS),
        ("Querying Status", RUNS),
        ("Registering Custom Daemons", RUNS),
        ("Handling Permanently Failed Daemons", RUNS),
        ("Configuration Options", RUNS),
        ("Import", RUNS),
        ("Publishing Events", RUNS),
        ("Module-Level Convenience Function", RUNS),
        ("Subscribing to Events", RUNS),
        ("RouterEvent Structure", RUNS),
        ("Event Sources", RUNS),
        ("Checking Subscribers", RUNS),
        ("Router Statistics", RUNS),
        ("Import", RUNS),
        ("Basic Sync Operations", RUNS),
        ("Using SyncFacade Directly", RUNS),
        ("Priority Sync for Recovery", RUNS),
        ("SyncResponse Structure", RUNS),
        ("Sync Backends", RUNS),  # prints the enum itself, and needs nothing
        ("Health Check", RUNS),
        ("Import", RUNS),
        ("Initialization", RUNS),
        ("Status Checking", RUNS),
        ("Shutdown", RUNS),
        ("HealthCheckResult Protocol", RUNS),
        ("Implementing Health Checks", RUNS),
        ("Using HealthCheckHelper", RUNS),
        ("Example: Full Daemon Lifecycle", RUNS),
        ("Example: Event-Driven Pipeline", RUNS),
        ("Example: Priority Sync with Feedback", RUNS),
        ("Example: Health Monitoring Dashboard", RUNS),
    ],
    "package_readme.md": [
        ("Quick Start", RUNS),
        ("1. Event-Driven Pipeline", RUNS),
        ("2. Dead Letter Queue", ENDLESS),
        ("4. Health Monitoring", RUNS),
        ("5. Backpressure", RUNS),
        ("6. Distributed Tracing", RUNS),
        ("Emitting Pipeline Events", RUNS),
        ("Task Coordination", RUNS),
        ("Sync Scheduling", RUNS),
    ],
}


@dataclass(frozen=True)
class Block:
    document: str
    number: int
    heading: str
    text: str

    @property
    def code(self):
        """As printed, but for a comment that stands where Python wants a statement."""
        return "\n".join(line.replace("# ...", "...") for line in self.text.splitlines())


def blocks_of(document):
    found, heading, inside, language = [], "", None, ""
    for line in (DOCUMENTS / document).read_text(encoding="utf8").splitlines():
        if line.startswith("```"):
            if inside is None:
                inside, language = [], line[3:]
                continue
            if language == "python":
                found.append(Block(document, len(found) + 1, heading, "\n".join(inside)))
            inside = None
        elif inside is not None:
            inside.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


@pytest.mark.parametrize("document", MANIFEST)
def test_every_block_is_listed(document):
    assert [block.heading for block in blocks_of(document)] == [heading for heading, _ in MANIFEST[document]]


def prelude():
    """What the documents leave to their reader."""

    class MyCustomDaemon:
        async def start(self):
            pass

        async def wait_for_shutdown(self):
            await asyncio.Event().wait()

    for name in ("MY_DAEMON", "SOME_DAEMON"):
        DaemonType.register(name)
    return {
        "__name__": "example",
        "Any": Any,
        "Enum": Enum,
        "MyCustomDaemon": MyCustomDaemon,
        "asyncio": asyncio,
        "dataclass": dataclass,
        "on_model_promoted": lambda event: None,
        "os": os,
        "queue": queue.Queue(),
        "self": SimpleNamespace(_start_time=0.0),
    }


async def run_block(block, names):
    where = f"{block.document} block {block.number}"
    code = compile(block.code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


async def run_document(document):
    """Run all blocks in order; return what became of each."""
    names, ended = prelude(), []
    for block, (_, expected) in zip(blocks_of(document), MANIFEST[document], strict=True):
        try:
            async with asyncio.timeout(ENDLESS_S if expected == ENDLESS else 60):
                await run_block(block, names)
        except PlannedModule as planned:
            ended.append(planned.capability)
        except NameError as error:
            # A later block of a capability whose import failed before.
            missing = any(end not in {RUNS, ENDLESS} for end in ended)
            ended.append(expected if missing and expected not in {RUNS, ENDLESS} else repr(error))
        except TimeoutError:
            ended.append(ENDLESS)
        else:
            ended.append(RUNS)
    return ended


@pytest.fixture
async def clean_end():
    yield
    await close_engine()


@pytest.mark.parametrize("document", MANIFEST)
async def test_examples_run_as_printed(document, clean_end):
    ended = await run_document(document)
    await get_daemon_manager().shutdown(timeout=5.0, force=True)
    await get_router().stop()
    expected = [verdict for _, verdict in MANIFEST[document]]
    listed = [block.heading for block in blocks_of(document)]
    assert dict(enumerate(zip(listed, ended, strict=True), 1)) == dict(
        enumerate(zip(listed, expected, strict=True), 1)
    )


async def test_the_printed_lifecycle_brings_up_every_daemon_that_it_starts(clean_end):
    """AUTO_SYNC is started before FEEDBACK_LOOP, which it needs."""
    names = prelude()
    (block,) = [b for b in blocks_of("api_reference.md") if b.heading == "Example: Full Daemon Lifecycle"]
    await run_block(block, names)
    manager = get_daemon_manager()
    started = [DaemonType(name) for name in ("event_router", "data_pipeline", "auto_sync", "feedback_loop")]
    async with asyncio.timeout(60):
        example = asyncio.create_task(names["main"]())
        while not all(manager.is_running(daemon) for daemon in started):
            await asyncio.sleep(0.05)
    example.cancel()
    await asyncio.wait({example})
    await manager.shutdown(timeout=5.0, force=True)
    await get_router().stop()


async def test_the_printed_start_with_dependencies_succeeds_in_a_program_where_nothing_runs(clean_end):
    manager = get_daemon_manager()
    async with asyncio.timeout(20):
        assert await manager.start(DaemonType.DATA_PIPELINE, wait_for_deps=True)
    assert manager.is_running(DaemonType.EVENT_ROUTER)
    await manager.shutdown(timeout=5.0, force=True)
    await get_router().stop()


def test_what_is_marked_as_not_built_is_not():
    marked = {verdict for rows in MANIFEST.values() for _, verdict in rows} - {RUNS, ENDLESS}
    assert {name for name in marked if capability(name).built} == set()


def printed_class(document, number, name):
    block = blocks_of(document)[number - 1]
    names = {**prelude(), "EventSource": EventSource}
    exec(compile(block.code, block.heading, "exec"), names)
    return names[name]


def test_the_printed_shapes_are_ours():
    event = RouterEvent("TRAINING_COMPLETED", {"config_key": "hex8_2p"})
    for item in fields(printed_class("api_reference.md", 13, "RouterEvent")):
        assert hasattr(event, item.name), item.name
    printed = printed_class("api_reference.md", 14, "EventSource")
    assert {member.name: member.value for member in printed} == {m.name: m.value for m in EventSource}
    result = HealthCheckResult.ok()
    for item in fields(printed_class("api_reference.md", 28, "HealthCheckResult")):
        assert hasattr(result, item.name), item.name
