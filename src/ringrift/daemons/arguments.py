"""What callers of the daemon room hand in, checked before anything is changed.

A wrong value that got into the supervisor would be noticed by the next status call, far from its cause.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError

E = TypeVar("E", bound=StrEnum)


def daemon_type_of(value: Any) -> DaemonType:
    """Return the daemon type that *value* is or names; `ConfigError` if there is none."""
    if isinstance(value, DaemonType):
        return value
    try:
        return DaemonType(value)
    except ValueError:
        pass
    name = value.upper() if isinstance(value, str) and value.upper().isidentifier() else "MY_DAEMON"
    raise ConfigError(
        f"{value!r} is no daemon type; make one of your own with "
        f'DaemonType.register("{name}"), and use what that returns'
    )


def daemon_types_of(name: str, values: object) -> tuple[DaemonType, ...]:
    """Return several daemon types; `ConfigError` for a single one, or for what is none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {values!r}; it must be several daemon types, in a list")
    return tuple(daemon_type_of(value) for value in values)


def member_of(name: str, kind: type[E], value: Any) -> E:
    """Return the member of *kind* that *value* is or names; `ConfigError` lists them if there is none."""
    try:
        return kind(value)
    except ValueError:
        listed = ", ".join(member.value for member in kind)
        raise ConfigError(f"{name} is {value!r}; it must be one of: {listed}") from None


def number_of(name: str, value: object, *, least: float = 0.0, above: bool = False) -> float:
    """Return a finite number of at least *least* (or *above* it); `ConfigError` for anything else."""
    limit = f"above {least:g}" if above else f"{least:g} or more"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and (value > least if above else value >= least):  # type: ignore[arg-type, operator]
        return value  # type: ignore[return-value]
    raise ConfigError(f"{name} is {value!r}; it must be a number, {limit}")


def callable_without_arguments(name: str, function: object) -> Callable[[], Any]:
    """Return *function* if it can be called with nothing; `ConfigError` that says what it wants if not."""
    if not callable(function):
        raise ConfigError(f"{name} is {function!r}; it must be callable")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of those in C that do not say what they take
        return function
    wanted = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if wanted:
        raise ConfigError(f"{name} takes {', '.join(wanted)}; it is called without arguments")
    return function
