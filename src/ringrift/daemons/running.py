"""One run of one daemon: make it, start it, say that it is ready, drive it to its end.

The task that runs this *is* the daemon: cancelling it ends everything the daemon does. Whatever the daemon
raises becomes a fact about its run. Other calls into somebody else's code are made here too.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack, get_args, get_origin

import structlog

from ringrift.errors import RingRiftError, described
from ringrift.events.delivery import await_ending
from ringrift.task_owner import TaskOwner

log = structlog.get_logger()


# The one place of the control side, beside the router, where somebody else's code may raise and we go on.
#
# The error becomes a value; the caller counts, logs and reports it. Cancellation passes through, and so does
# the end of the process, except where a daemon asks for it: that is a crash of the daemon.


class Called(NamedTuple):
    """What a call returned, or how it failed."""

    value: Any
    error: Exception | None

    @property
    def problem(self) -> str:
        """The error in one line; empty when there is none."""
        return "" if self.error is None else described(self.error)


def call(function: Callable[[], Any]) -> Called:
    """Call a function."""
    try:
        return Called(function(), None)
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        return Called(None, error)


async def call_async(function: Callable[[], Any], *, timeout_s: float | None = None) -> Called:
    """Call a function, and wait for its result if that is awaitable; a time-out is a `TimeoutError`."""
    try:
        async with asyncio.timeout(timeout_s):
            value = function()
            return Called(await await_ending(value) if inspect.isawaitable(value) else value, None)
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        return Called(None, error)


async def live(daemon: Callable[[], Awaitable[None]]) -> Called:
    """Run a daemon to its end."""
    try:
        await daemon()
        return Called(None, None)
    except SystemExit as error:
        return Called(None, RuntimeError(f"called sys.exit({error.code!r})"))
    except Exception as error:  # noqa: BLE001 - the supervisor's boundary: any exception is a crash
        return Called(None, error)


# The same for calls that bootstrap and health outlive: each failure is logged, and the caller reports it as a
# status, an event or a health result.


def attempt(what: str, function: Callable[[], Any]) -> Called:
    """Call; an error is logged under *what* and returned."""
    return _logged(what, call(function))


async def attempt_async(what: str, function: Callable[[], Awaitable[Any] | Any]) -> Called:
    """The same for a call that may return an awaitable."""
    return _logged(what, await call_async(function))


def _logged(what: str, called: Called) -> Called:
    if called.error is not None:
        # Where it was raised and no whole traceback: the same call may fail every few seconds.
        frames = traceback.extract_tb(called.error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        log.warning("isolated.call_failed", what=what, error=repr(called.error), where=where)
    return called


OVERRAN = "did not end before the deadline"


async def end_within(ending: Coroutine[Any, Any, Any], timeout_s: float, *, grace_s: float) -> str:
    """Wait for the end of *ending*, and then *grace_s* for its cancellation; return what went wrong.

    It may ignore its cancellation: its owner's log names it then, and nobody waits for it any longer.
    """
    owner = TaskOwner("what is shut down")
    task = owner.create_task(ending)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            return OVERRAN
        error = None if task.cancelled() else task.exception()
        return "cancelled itself" if task.cancelled() else repr(error) if error else ""
    finally:
        await owner.stop(grace_s)


# One run of one daemon.


Factory = Callable[..., Any]

# How a started object is awaited, in order of preference.
_WAITS = ("wait_for_shutdown", "wait_until_stopped", "wait")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended by itself. An empty *error* means that it completed."""

    error: str = ""
    import_failed: bool = False
    cancelled: bool = False  # by somebody other than the supervisor


class StartedTooLate(RingRiftError):
    """A start that outlived its cancellation; raised into the daemon, so that it ends now."""


@dataclass(frozen=True, slots=True)
class RunHooks:
    """What a run reports while it lives."""

    made: Callable[[Any], None]
    ready: Callable[[], bool]  # False: nobody waits for this run any more


async def run_daemon(factory: Factory, *, ready_timeout_s: float, hooks: RunHooks) -> RunOutcome:
    """Run to the end. Only cancellation leaves this as an exception."""
    limit = asyncio.timeout(None)

    async def within_limit() -> None:
        async with limit:
            await _live(factory, limit, ready_timeout_s, hooks)

    lived = await live(within_limit)
    if isinstance(lived.error, TimeoutError) and limit.expired():
        return RunOutcome(f"not ready within {ready_timeout_s:g} s")
    return RunOutcome(lived.problem, import_failed=isinstance(lived.error, ImportError))


async def _live(factory: Factory, limit: asyncio.Timeout, ready_timeout_s: float, hooks: RunHooks) -> None:
    def ready() -> None:
        if limit.expired() or not hooks.ready():
            raise StartedTooLate("it was ready only after it had been given up")
        limit.reschedule(None)

    limit.reschedule(asyncio.get_running_loop().time() + ready_timeout_s)
    made = factory()
    if inspect.isawaitable(made):
        if not isinstance(factory, EntryPoint):
            ready()  # awaiting it may be the whole life of the daemon
        made = await made
    if made is not None:
        hooks.made(made)
        await _drive(made, ready)


def is_ready_at_once(factory: Factory) -> bool:
    """An async function is the daemon itself; there is no separate start to wait for."""
    call = vars(type(factory)).get("__call__")
    return inspect.iscoroutinefunction(factory) or inspect.iscoroutinefunction(call)


def takes_keyword(function: Callable[..., Any], keyword: str) -> bool:
    """Return whether *function* names *keyword*, itself or in the `TypedDict` of its further keywords."""
    try:
        parameters = inspect.signature(function).parameters
        if keyword in parameters or all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
            return keyword in parameters
        *_, further = inspect.signature(function, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):  # NameError: an annotation that is there for checkers alone
        return False
    given = get_args(further.annotation) if get_origin(further.annotation) is Unpack else ()
    return any(keyword in each.__annotations__ for each in given)


class EntryPoint:
    """A factory that imports `module:factory` and hands it what it names of *offered*."""

    def __init__(self, entry_point: str, offered: Mapping[str, Any]) -> None:
        self._entry_point, self._offered = entry_point, dict(offered)

    def __call__(self) -> Awaitable[Any]:
        return self._load_and_call()

    async def _load_and_call(self) -> Any:
        module_name, _, attribute = self._entry_point.partition(":")
        if not _is_imported(module_name):
            # An import may read hundreds of files; the loop must not wait for them.
            await asyncio.to_thread(importlib.import_module, module_name)
        module = sys.modules[module_name]
        try:
            factory = getattr(module, attribute)
        except AttributeError:
            raise ImportError(f"{module_name} has no {attribute}") from None
        given = {name: value for name, value in self._offered.items() if takes_keyword(factory, name)}
        if inspect.iscoroutinefunction(factory):
            return _AsyncFunction(functools.partial(factory, **given))
        return factory(**given)


def _is_imported(module_name: str) -> bool:
    """Return whether a module is there to its last line; one that another thread imports is not yet."""
    module = sys.modules.get(module_name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class _AsyncFunction:
    """An async function behind an entry point: running it is the daemon."""

    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        self._function = function

    async def run(self) -> None:
        await self._function()


async def _drive(daemon: Any, ready: Callable[[], None]) -> None:
    if callable(run := getattr(daemon, "run", None)):
        if takes_keyword(run, "on_ready"):
            await _settle(run(on_ready=ready))
        else:
            ready()
            await _settle(run())
        return
    if not callable(start := getattr(daemon, "start", None)):
        raise TypeError(f"{type(daemon).__name__} has neither run() nor start()")
    try:
        await _settle(start())
        ready()
        await _wait_for_end(daemon)
    finally:
        if callable(stop := getattr(daemon, "stop", None)):
            await _settle(stop())


async def _wait_for_end(daemon: Any) -> None:
    for name in _WAITS:
        if callable(wait := getattr(daemon, name, None)):
            await _settle(wait())
            return
    # It looks after its own tasks; only a stop ends it.
    await asyncio.get_running_loop().create_future()


async def _settle(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
