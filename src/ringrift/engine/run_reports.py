"""What the objects of a control process say of themselves, kept where every process can read it.

A getter marked `reported` answers from the fields of its object. That is right where the object works. In any
other process the object of the same name has heard and done nothing, and its zeros would be a lie: there the
getter gives what the control process last wrote. What nobody wrote, or wrote too long ago, is unknown: None.
Asking starts nothing, writes nothing, makes no store, and waits a second at most.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.records import read_record
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

REPORT_KEY = "control/report"
SILENT_S = 30.0  # a control process writes every few seconds; one that does not may be gone
ANSWER_S = 1.0
UNKNOWN = "unknown"
_MARK = "_reported"  # on a getter: whether it waits for the store
_STATES = frozenset({"status", "state", "level", "system_health_level"})  # words of a fixed set
_NAMES = frozenset({"name"})  # the same in every process


class Working(Protocol):
    """An object whose fields mean something where it works."""

    @property
    def works_here(self) -> bool: ...


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of a control process at one moment."""

    at_s: float
    ended: bool = False  # its last words: they hold for ever
    answers: dict[str, Any] = {}


class ControlHere:
    """In the scope of a process that controls a run: whatever it is asked, it knows itself."""


S = TypeVar("S", bound=Working)


def reported(getter: Callable[[S], dict[str, Any]]) -> Callable[[S], dict[str, Any]]:
    """Mark a method that answers from fields with a plain document."""

    @functools.wraps(getter)
    def ask(self: S) -> dict[str, Any]:
        if answers_here(self):
            return getter(self)
        report = reported_by_run(_key(self, getter))
        if report.known:
            return getter(self) if report.answer is None else dict(report.answer)
        return unknown(getter(self)) if _is_of_product(self) else getter(self)

    setattr(ask, _MARK, False)
    return ask


def reported_slowly(getter: Callable[[S], dict[str, Any]]) -> Callable[[S], dict[str, Any]]:
    """The same for one that also waits for the store: the control process asks it off its loop."""
    ask = reported(getter)
    setattr(ask, _MARK, True)
    return ask


def reported_health(getter: Callable[[S], HealthCheckResult]) -> Callable[[S], HealthCheckResult]:
    """Mark a health check that answers from fields."""

    @functools.wraps(getter)
    def ask(self: S) -> HealthCheckResult:
        if answers_here(self):
            return getter(self)
        report = reported_by_run(_key(self, getter))
        if report.known:
            return getter(self) if report.answer is None else _health_of(report.answer)
        return _unknown_health(getter(self)) if _is_of_product(self) else getter(self)

    setattr(ask, _MARK, False)
    return ask


class ReportedGetter(NamedTuple):
    """A marked getter of an object, under the name that its answer is stored by."""

    name: str
    ask: Callable[[], Any]
    waits: bool


def reported_getters(thing: object) -> Iterator[ReportedGetter]:
    """All that may be asked of *thing*, with what its base classes answer by themselves.

    Of a name that *thing* lists in `answers_instead` only what it answers itself, and not what its other base
    classes would: nobody asks those any more.
    """
    for getter, waits in _reported_of(cast("Hashable", type(thing))):
        yield ReportedGetter(_key(thing, getter), functools.partial(getter, thing), waits)


@functools.lru_cache(
    maxsize=512
)  # the same every few seconds for each of many objects, and hardly any attribute is one
def _reported_of(kind: Hashable) -> tuple[tuple[Callable[..., Any], bool], ...]:
    assert isinstance(kind, type)
    instead: frozenset[str] = getattr(kind, "answers_instead", frozenset())
    return tuple(
        (getter, waits)
        for home in kind.__mro__
        for name, getter in vars(home).items()
        if (name not in instead or getter is getattr(kind, name))
        and (waits := getattr(getter, _MARK, None)) is not None
    )


def answers_here(thing: Working) -> bool:
    """Whether the fields of *thing* are the answer: it is at work, or nobody but its maker knows of it."""
    scope = process_scope()
    if scope.peek(ControlHere) is not None or thing.works_here:
        return True
    return scope.peek(type(thing)) is not thing


class RunAnswer(msgspec.Struct, frozen=True):
    """What the run said. *answer* is None of what it never had: then a fresh object says the same."""

    known: bool
    answer: Any = None


def reported_by_run(key: str) -> RunAnswer:
    """What the control process of this data folder says, now or in its last words."""
    report = read_report()
    if report is None:
        return RunAnswer(False)
    return RunAnswer(True, report.answers.get(key))


def read_report() -> RunReport | None:
    """The report that counts; None if there is none, or it is too old, or the store does not answer."""
    try:
        report = run_blocking(_stored(), timeout_s=ANSWER_S)
    except (Unavailable, Corrupt, ConfigError):  # the store says why to whoever works with it
        return None
    if report is None or report.ended:
        return report
    return report if system_runtime().now_s() - report.at_s <= SILENT_S else None


async def _stored() -> RunReport | None:
    engine = await existing_engine()
    return None if engine is None else await read_record(engine.kv, REPORT_KEY, RunReport)


def unknown(document: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of *document* with nothing known in it."""
    return {str(name): value if name in _NAMES else _blank(name, value) for name, value in document.items()}


def _blank(name: str, value: object) -> Any:
    if isinstance(value, Mapping):
        return unknown(value)
    return UNKNOWN if name in _STATES and isinstance(value, str) else None


def _unknown_health(local: HealthCheckResult) -> HealthCheckResult:
    text = "no run tells how it is"
    return HealthCheckResult(
        False, CoordinatorStatus.UNKNOWN, text, unknown(local.details), timestamp=local.timestamp
    )


def _health_of(report: Mapping[str, Any]) -> HealthCheckResult:
    return HealthCheckResult(
        bool(report["healthy"]),
        CoordinatorStatus(report["status"]),
        str(report["message"]),
        dict(report["details"]),
        timestamp=float(report["timestamp"]),
    )


def _key(thing: object, getter: Callable[..., Any]) -> str:
    return f"{type(thing).__name__}:{getter.__qualname__}"


def _is_of_product(thing: object) -> bool:
    """A class of a user's own works in his processes alone, where its fields are the answer."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]
