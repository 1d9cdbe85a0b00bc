"""How each kind of setting is read, and what a person is told about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringrift.errors import ConfigError

SECRET_LETTERS_MIN = 16


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How to read one type of value, and what to tell a person about it."""

    allowed: str
    parse: Callable[[Any], Any]


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    return words[str(value).strip().lower()]


def _parse_number(value: Any, *, above: float, up_to: float) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not above < number <= up_to:
        raise ValueError
    return number


def _parse_port(value: Any) -> int:
    if isinstance(value, bool) or not 0 <= int(value) <= 65535:
        raise ValueError
    return int(value)


def _parse_name(value: Any) -> str:
    text = str(value)
    if not text or len(text) > 100 or not all(c.isalnum() or c in "._-" for c in text):
        raise ValueError
    return text


def _parse_names(value: Any) -> tuple[str, ...]:
    """Read a list of names, or the same with commas between them."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise TypeError
    return tuple(_parse_name(each.strip()) for each in given if each.strip())


def _parse_host(value: Any) -> str:
    text = str(value)
    if not text or len(text) > 255 or not all(c.isalnum() or c in ".:-" for c in text):
        raise ValueError
    return text


def _parse_path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError
    return Path(value).expanduser()


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that no report, log line or error shows."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(secret)"


def _parse_secret(value: Any) -> Secret:
    if not isinstance(value, str) or len(value) < SECRET_LETTERS_MIN:
        # The general message would show the value.
        raise ConfigError(f"RINGRIFT_DATA_SECRET must be a text of at least {SECRET_LETTERS_MIN} letters")
    return Secret(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What a user says of one kind of job: the table `[jobs.KIND]`."""

    kind: str
    command: tuple[str, ...] = ()  # instead of our own program
    timeout_s: float | None = None  # None: from measured durations
    silence_s: float | None = None  # longest time without a line
    memory_mb: int | None = None
    nice: int = 5  # 0 to 19; jobs give way to the processes that control them
    cpus: tuple[int, ...] = ()  # none: all
    env: tuple[str, ...] = ()  # variables of the worker that the job gets beside the usual ones


def _parse_jobs(value: Any) -> tuple[JobSettings, ...]:
    """Read a table of tables, or the same as JSON from the environment."""
    tables = json.loads(value) if isinstance(value, str) else value
    return tuple(_parse_job(_parse_name(kind), table) for kind, table in dict(tables).items())


def _parse_job(kind: str, table: Mapping[str, Any]) -> JobSettings:
    readers: dict[str, Callable[[Any], Any]] = {
        "command": _parse_command,
        "timeout_s": lambda v: _parse_number(v, above=0.0, up_to=31_536_000.0),
        "silence_s": lambda v: _parse_number(v, above=0.0, up_to=31_536_000.0),
        "memory_mb": lambda v: int(_parse_number(v, above=0.5, up_to=1e9)),
        "nice": lambda v: int(_parse_number(v, above=-1.0, up_to=19.0)),
        "cpus": lambda v: tuple(int(_parse_number(each, above=-1.0, up_to=65_535.0)) for each in v),
        "env": _parse_variables,
    }
    if unknown := sorted(set(table) - set(readers)):
        raise ConfigError(f"[jobs.{kind}] has no {unknown[0]!r}; it may have: {', '.join(readers)}")
    read: dict[str, Any] = {}
    for name, given in table.items():
        try:
            read[name] = readers[name](given)
        except (ValueError, TypeError):
            raise ConfigError(f"{name} of [jobs.{kind}] cannot be {given!r}") from None
    return JobSettings(kind=kind, **read)


def _parse_command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise TypeError
    return tuple(value)


def _parse_variables(value: Any) -> tuple[str, ...]:
    names = _parse_command(value) if value != [] else ()
    for name in names:
        if not name.isidentifier() or name.startswith("RINGRIFT_"):  # what is ours is not for jobs
            raise ValueError
    return names


def _parse_table(value: Any) -> dict[str, Any]:
    """Read a table, or the same as JSON from the environment."""
    table = json.loads(value) if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise TypeError
    return table


def _parse_prices(value: Any) -> dict[str, float]:
    return {
        _parse_name(node): _parse_number(price, above=-1e-9, up_to=1e6)
        for node, price in _parse_table(value).items()
    }


BOOL = ValueKind("true or false", _parse_bool)
TABLE = ValueKind("a table", _parse_table)
PRICES = ValueKind("a table of names of nodes with the price of an hour", _parse_prices)
JOBS = ValueKind("a table per kind of job, such as [jobs.train]", _parse_jobs)
SECRET = ValueKind(f"a text of at least {SECRET_LETTERS_MIN} letters", _parse_secret)
PATH = ValueKind("a file path", _parse_path)
PORT = ValueKind("a port number from 0 (any free port) to 65535", _parse_port)
NAME = ValueKind("1 to 100 letters, digits, '.', '_' or '-'", _parse_name)
NAMES = ValueKind("a list of names", _parse_names)
HOST = ValueKind("a host name or IP address", _parse_host)
SECONDS = ValueKind(
    "a number of seconds above 0, at most 604800",
    lambda v: _parse_number(v, above=0.0, up_to=604_800.0),
)
SECONDS_OR_ZERO = ValueKind(
    "a number of seconds from 0 to 604800",
    lambda v: _parse_number(v, above=-1e-9, up_to=604_800.0),
)
HOURS = ValueKind(
    "a number of hours above 0, at most 8760", lambda v: _parse_number(v, above=0.0, up_to=8760.0)
)
COUNT = ValueKind(
    "a whole number from 1 to 100000000",
    lambda v: int(_parse_number(v, above=0.5, up_to=1e8)) if float(v) == int(float(v)) else int("x"),
)
