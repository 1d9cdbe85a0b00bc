"""Opening and closing the engine on JetStream."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from datetime import datetime
from typing import Any

import structlog
from nats.aio.msg import Msg

from ringrift.clock import ClockAnchor, new_anchor
from ringrift.engine.nats.events import NatsEventLog
from ringrift.engine.nats.kv import NatsKeyValue, NatsStore
from ringrift.engine.nats.link import NatsConfig, NatsLink, translated
from ringrift.engine.nats.queue import NatsWorkQueue
from ringrift.engine.nats.stream import Stream
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.blobs import FileBlobs
from ringrift.engine.waiting import ALL, EngineClock, Topics
from ringrift.errors import ConfigError, Unavailable
from ringrift.files import HeldPath, make_private_folder
from ringrift.process import process_scope
from ringrift.runtime import Runtime

NANOSECONDS = 1_000_000_000
REPEATED_S = 3_600  # in which the server knows an event by its id again

log = structlog.get_logger()


def open_nats(config: NatsConfig, runtime: Runtime) -> Engine:
    """Open the engine, making its streams if they are absent. Blocks; start it in a thread.

    Raises `Unavailable` if no server answers, and `ConfigError` if one cannot keep what is promised.
    """
    link = NatsLink(config)
    link.open()
    try:
        return link.begin(_assemble(link, runtime)).result(config.call_wait_s * 3)
    except FutureTimeout:
        link.close()
        raise Unavailable(f"the streams of {config.name} are not there in time") from None
    except BaseException:
        link.close()
        raise


async def _assemble(link: NatsLink, runtime: Runtime) -> Engine:
    config = link.config
    state = Stream(link, f"{config.name}_STATE", runtime=runtime)
    events = Stream(link, f"{config.name}_EVENTS", runtime=runtime)
    shared: dict[str, Any] = {
        "storage": "file",
        "discard": "new",
        "allow_atomic": True,
        "retention": "limits",
    }
    made = await state.ensure(
        {
            **shared,
            "subjects": [f"{config.subjects}.{part}.>" for part in "kpwc"],
            "discard": "old",
            "max_msgs_per_subject": 1,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": round(config.limits.tombstone_retention_s) * NANOSECONDS,
        }
    )
    made_events = await events.ensure(
        {
            **shared,
            "subjects": [f"{config.subjects}.e.>"],
            "duplicate_window": REPEATED_S * NANOSECONDS,
        }
    )
    _check_stream(made["config"], {"max_msgs_per_subject": 1, "allow_msg_ttl": True})
    _check_stream(made_events["config"], {})
    topics = Topics()

    async def heard(message: Msg) -> None:
        topics.wake(message.data.decode(errors="replace").split(","))

    def announce(*changed: str) -> None:
        """Wake who waits here, and tell the others; a word that gets lost costs them a poll."""
        topics.wake(changed)
        link.tell(changed)

    with translated("wake-ups"):
        await link.client.subscribe(config.wake_subject, cb=heard)
    link.reconnected.append(lambda: topics.wake((ALL,)))  # what was said meanwhile was not heard
    anchors = process_scope().get(Anchors, Anchors)
    clock = EngineClock(runtime, anchors.of(config, runtime, made["ts"]))
    store = NatsStore(state, runtime, clock, topics, announce)
    kv = NatsKeyValue(store)
    queue = NatsWorkQueue(store, kv)
    await asyncio.to_thread(make_private_folder, config.blob_dir)
    blobs = FileBlobs(config.blob_dir, runtime, HeldPath.of(config.blob_dir))
    return Engine(
        events=NatsEventLog(store, events),
        queue=queue,
        kv=kv,
        blobs=blobs,
        lifecycle=NatsLifecycle(link, queue, blobs, topics),
    )


def _check_stream(found: dict[str, Any], promised: dict[str, Any]) -> None:
    """A stream that somebody made otherwise keeps none of the promises."""
    for setting, wanted in {"allow_atomic": True, "allow_direct": True, **promised}.items():
        if (there := found.get(setting)) != wanted:
            raise ConfigError(f"the stream {found['name']} has {setting} {there!r}, not {wanted!r}")


class Anchors:
    """Since when this process counts the time of a store: by the server's clock, which all machines share."""

    def __init__(self) -> None:
        self._anchors: dict[tuple[str, ...], ClockAnchor] = {}

    def of(self, config: NatsConfig, runtime: Runtime, server_time: str) -> ClockAnchor:
        place = (config.name, *config.servers)
        if place not in self._anchors:
            now_s = datetime.fromisoformat(server_time).timestamp()
            self._anchors[place] = new_anchor(
                boot=runtime.boot_id, boot_s=runtime.boot_s(), now_s=now_s, last_s=None
            )
        return self._anchors[place]


class NatsLifecycle:
    """See `EngineLifecycle`."""

    def __init__(self, link: NatsLink, queue: NatsWorkQueue, blobs: FileBlobs, topics: Topics) -> None:
        self._link, self._queue, self._blobs, self._topics = link, queue, blobs, topics
        self._lock = threading.Lock()
        self._closed = False

    @property
    def failure(self) -> str:
        """A connection that is lost comes back by itself, unless the server sent it away for good."""
        return self._link.failure

    @property
    def exchanged(self) -> str:
        return ""

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        if self._link.is_of_parent:  # it is not a forked child's to close
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            with suppress(FutureTimeout):
                self._link.begin(self._queue.close()).result(self._link.config.call_wait_s)
            self._blobs.close(wait_s=self._link.config.call_wait_s)
        finally:
            self._link.close()
            self._topics.wake((ALL,))  # whoever waits here finds out
