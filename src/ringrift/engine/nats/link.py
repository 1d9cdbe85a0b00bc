"""One connection to NATS for a whole process.

The client belongs to one event loop, and an engine is used from all of a process: the connection has a
thread and a loop of its own, and every call is handed over to it. What the client raises leaves as one of
our errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError

from ringrift.engine.limits import EngineLimits
from ringrift.errors import ConfigError, RingRiftError, Unavailable, storable_text
from ringrift.task_owner import TaskOwner

T = TypeVar("T")

RECONNECT_S, CONNECT_S = 1, 5
CLOSE_S = 5.0
CLOSED = "this engine is closed"
TRIES, HEARD_MAX = 1, 16
VERSION_MIN = (2, 12)  # batches that are stored whole or not at all
# The second where a message under the same condition is still on its way through the cluster.
WRONG_LAST_SEQUENCE, STILL_ON_ITS_WAY = 10071, 10164

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """Where the servers are, who asks, and how what is stored there is named and kept."""

    servers: tuple[str, ...]
    blob_dir: Path  # of this node; files travel by the data plane
    name: str = "RINGRIFT"  # of the streams; a word, so that several runs may share the servers
    replicas: int = 1
    token: str | None = None
    user: str | None = None
    password: str | None = None
    credentials: Path | None = None
    tls_ca: Path | None = None
    limits: EngineLimits = field(default_factory=EngineLimits)
    call_wait_s: float = 10.0
    poll_s: float = 2.0  # between two looks while nothing is heard: a word of a change may get lost

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("no NATS server is named; give at least one, such as nats://127.0.0.1:4222")
        if not self.name.isascii() or not self.name.replace("_", "").isalnum():
            raise ConfigError(f"the name {self.name!r} is no word of letters, digits and underscores")
        if self.replicas not in (1, 3, 5):
            raise ConfigError(f"replicas is {self.replicas}; JetStream keeps 1, 3 or 5 copies")
        for what in ("call_wait_s", "poll_s"):
            if not 0 < getattr(self, what) < float("inf"):
                raise ConfigError(f"{what} is {getattr(self, what)}; it must be above 0 and finite")

    @property
    def subjects(self) -> str:
        """What every subject of this store begins with."""
        return self.name.lower()

    @property
    def wake_subject(self) -> str:
        """Where each tells the others what changed."""
        return f"{self.subjects}.wake"


class ServerRefused(Exception):
    """What the server says of a call that it did not carry out."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def without_credentials(url: str) -> str:
    """The address alone, for logs and for whoever tries to get in without them."""
    scheme, found, rest = url.rpartition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what the client or the server says as one of our errors."""
    try:
        yield
    except MaxPayloadError:
        raise ConfigError(f"{what}: it is larger than the server takes; raise its max_payload") from None
    except NoRespondersError:
        raise Unavailable(f"{what}: JetStream does not answer; is it switched on?") from None
    except (NatsError, TimeoutError, OSError) as error:
        why = storable_text(error, chars_max=500) or type(error).__name__
        raise Unavailable(f"{what}: {why}; a write may still take effect") from error
    except ServerRefused as error:
        raise Unavailable(f"{what}: {error.text} ({error.code})") from None


@dataclass(slots=True, eq=False)
class _Call:
    work: Coroutine[Any, Any, Any]
    answer: asyncio.Future[Any]  # on the caller's loop
    task: asyncio.Task[Any] | None = None


def _refuse(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(Unavailable(CLOSED))


def _trusting(certificates: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificates)
    except OSError as error:  # an unreadable one is an error of SSL, which is one of these
        raise ConfigError(f"{certificates} holds no certificates: {error}") from None


async def _outcome(work: Coroutine[Any, Any, T]) -> T | RingRiftError:
    """What *work* came to; a refusal is an answer too, and not the failure of a task."""
    try:
        return await work
    except RingRiftError as error:
        return error


class NatsLink:
    """From `open` to `close`; every call works on every event loop."""

    def __init__(self, config: NatsConfig) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringrift-nats", daemon=True)
        self._client = Client()
        self._heard: deque[Exception] = deque(maxlen=HEARD_MAX)  # while it is not connected
        self._closed = self._is_open = False
        self._handing = threading.Lock()
        self._calls: list[_Call] = []
        self._ended: dict[asyncio.AbstractEventLoop, list[tuple[_Call, asyncio.Task[Any]]]] = {}
        self._topics: set[str] = set()
        self._tasks = TaskOwner("calls of NATS")
        self._pid = os.getpid()
        self.failure = ""  # why there is no connection any more, and none will come
        self.reconnected: list[Callable[[], None]] = []  # called when the connection is there again

    @property
    def client(self) -> Client:
        return self._client

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    def open(self) -> None:
        """Connect; blocks. `Unavailable` if no server answers, `ConfigError` if it is too old."""
        self._thread.start()
        try:
            self.begin(self._connect()).result(CONNECT_S * (1 + len(self.config.servers)))
        except FutureTimeout:
            self.close()
            raise Unavailable("NATS does not answer") from None
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> None:
        config = self.config
        options: dict[str, Any] = {
            "token": config.token,
            "user": config.user,
            "password": config.password,
            "user_credentials": None if config.credentials is None else str(config.credentials),
            "tls": None if config.tls_ca is None else _trusting(config.tls_ca),
        }
        what = f"NATS at {', '.join(map(without_credentials, config.servers))}"
        try:
            await self._client.connect(
                list(config.servers),
                allow_reconnect=True,
                max_reconnect_attempts=TRIES,
                reconnect_time_wait=RECONNECT_S,
                connect_timeout=CONNECT_S,
                no_echo=True,
                error_cb=self._on_error,
                disconnected_cb=self._on_lost,
                closed_cb=self._on_closed,
                reconnected_cb=self._on_back,
                **{name: value for name, value in options.items() if value is not None},
            )
        except (NatsError, TimeoutError, OSError) as error:
            why = {
                storable_text(each, chars_max=200) or type(each).__name__ for each in self._heard or [error]
            }
            raise Unavailable(f"{what}: {'; '.join(sorted(why))}") from None
        # At the start an answer is wanted; later the connection is to come back, however long that takes.
        self._client.options["max_reconnect_attempts"] = -1
        self._heard.clear()
        self._is_open = True
        found = self._client.connected_server_version
        if (found.major, found.minor) < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise ConfigError(f"the NATS server has version {found.major}.{found.minor}; {wanted} is needed")

    async def _on_error(self, error: Exception) -> None:
        if not self._client.is_connected:
            self._heard.append(error)
            return
        log.warning("engine.nats.error", error=storable_text(error, chars_max=500))

    async def _on_lost(self) -> None:
        if not self._closed:
            log.warning(
                "engine.nats.connection_lost", servers=list(map(without_credentials, self.config.servers))
            )

    async def _on_closed(self) -> None:
        """The client gives up by itself where the server never takes it again, such as a user that went."""
        if not self._closed and not self.failure and self._is_open:
            why = storable_text(self._client.last_error or "it was ended", chars_max=300)
            self.failure = f"the connection to NATS was closed: {why}"
            log.critical("engine.nats.closed", error=self.failure)

    async def _on_back(self) -> None:
        url = self._client.connected_url
        server = "" if url is None else without_credentials(url.geturl())
        log.info("engine.nats.connected_again", server=server)
        for heard in self.reconnected:
            heard()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have *work* done on the loop of the connection, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def is_of_parent(self) -> bool:
        """Whether this is a forked child, which has neither the thread nor the connection."""
        return os.getpid() != self._pid

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do *work* on the loop of the connection; `Unavailable` at the time limit of calls."""
        if self.is_of_parent:
            work.close()
            raise ConfigError("the connection to NATS was opened before a fork; open it again in the child")
        if self._closed or self.failure:
            work.close()
            raise Unavailable(self.failure or CLOSED)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = _Call(work, answer)
        answer.add_done_callback(partial(self._give_up, call))
        self._hand_over(call)
        try:
            async with asyncio.timeout(self.config.call_wait_s):
                return await answer
        except TimeoutError:
            wait_s = self.config.call_wait_s
            raise Unavailable(f"NATS took more than {wait_s:g} s; a write may still take effect") from None

    def _hand_over(self, call: _Call) -> None:
        """Waking another thread costs more than most calls: those that come together share it, both ways."""
        with self._handing:
            # First: whoever is interrupted here leaves nothing for which nobody was woken.
            if not self._calls:
                self._wake(self._loop, self._take_over)
            self._calls.append(call)

    def _take_over(self) -> None:
        with self._handing:
            calls, self._calls = self._calls, []
        for call in calls:
            if call.answer.done() or self._tasks.is_stopped:
                call.work.close()
                self._wake(call.answer.get_loop(), partial(_refuse, call.answer))
                continue
            call.task = self._tasks.create_task(_outcome(call.work))
            call.task.add_done_callback(partial(self._hand_back, call))

    def _give_up(self, call: _Call, _: asyncio.Future[Any]) -> None:
        """The caller has his answer, or waits no longer."""
        if call.task is not None and not call.task.done():
            self._wake(self._loop, call.task.cancel)

    @staticmethod
    def _wake(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # that loop has ended, and who waited there with it
            loop.call_soon_threadsafe(work)

    def _hand_back(self, call: _Call, task: asyncio.Task[Any]) -> None:
        loop = call.answer.get_loop()
        with self._handing:
            if loop not in self._ended:
                self._wake(loop, partial(self._answer, loop))
            self._ended.setdefault(loop, []).append((call, task))
            if loop.is_closed():
                del self._ended[loop]

    def _answer(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._handing:
            ended = self._ended.pop(loop, [])
        for call, task in ended:
            if call.answer.done():
                continue
            if task.cancelled():
                call.answer.set_exception(Unavailable(f"{CLOSED}; a write may still take effect"))
            elif (error := task.exception()) is not None:
                call.answer.set_exception(error)
            elif isinstance(outcome := task.result(), RingRiftError):
                call.answer.set_exception(outcome)
            else:
                call.answer.set_result(outcome)

    def tell(self, topics: Iterable[str]) -> None:
        """Publish that *topics* changed, a word that may get lost; from any thread."""
        if self._closed or self.is_of_parent:
            return
        with self._handing:
            if not self._topics:
                self._wake(self._loop, self._begin_to_tell)
            self._topics.update(topics)

    def _begin_to_tell(self) -> None:
        if not self._tasks.is_stopped:
            self._tasks.create_task(self._tell())

    async def _tell(self) -> None:
        with self._handing:
            topics, self._topics = self._topics, set()
        with suppress(NatsError, OSError):
            await self._client.publish(self.config.wake_subject, ",".join(sorted(topics)).encode())

    # --- on the loop of the connection ------------------------------------------------------------------

    async def request(
        self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer; raises `ServerRefused` for an error of the server."""
        given = dict(headers) if headers else None
        reply = await self._client.request(subject, payload, timeout=self.config.call_wait_s, headers=given)
        answer: dict[str, Any] = json.loads(reply.data) if reply.data else {}
        if (error := answer.get("error")) is not None:
            raise ServerRefused(error.get("err_code", 0), error.get("description", "refused"))
        return answer

    async def api(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call the JetStream API."""
        return await self.request(f"$JS.API.{call}", json.dumps(body).encode())

    async def replies(self, subject: str, payload: bytes) -> list[Msg]:
        """Send a request that several messages answer, of which the last has a status."""
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        found: list[Msg] = []
        try:
            await self._client.publish(subject, payload, reply=inbox)
            while True:
                message = await subscription.next_msg(self.config.call_wait_s)
                found.append(message)
                if "Status" in (message.headers or {}):
                    return found
        finally:
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()

    # --- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what was accepted, for a while, and let go of the connection; blocks."""
        if self._closed or self.is_of_parent:
            return
        self._closed = True
        try:
            with suppress(FutureTimeout):
                self.begin(self._end()).result(2 * CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)
            if not self._thread.is_alive():
                self._loop.close()

    async def _end(self) -> None:
        await self._tasks.wait(CLOSE_S / 2)
        await self._tasks.stop(CLOSE_S / 10)
        with suppress(NatsError, OSError):
            if self._is_open:
                await self._client.close()
