"""How each kind of setting is read, and what a person is told about it.

Values come as text from the environment and typed from the config file. Nothing is rounded, cut or guessed: a
port of 1.5, a list written as a text or a number that is not finite is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ringrift.errors import ConfigError
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.jobs.kinds import KINDS
from ringrift.redaction import loaded_secret

SECRET_LETTERS_MIN = 16
LEASE_S_MIN = 1.0  # below that a worker that is held up for a moment loses its job
TABLE_DEPTH_MAX = 8
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A leading dash would be an option of ssh or rsync.
_HOST = re.compile(r"[A-Za-z0-9:\[][A-Za-z0-9.:%\[\]_-]{0,254}")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How to read one type of value, and what to tell a person about it."""

    allowed: str
    parse: Callable[[Any], Any]
    is_secret: bool = False  # no message shows a wrong value


def is_plain_text(text: str) -> bool:
    """Whether *text* has neither control characters nor bytes that are not UTF-8."""
    return not any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in text)


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    return words[value.strip().lower()]


def _parse_number(value: Any, *, least: float, most: float, above: bool = False) -> float:
    """Read a number from *least* to *most*; with *above*, *least* itself is too little."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if not least <= number <= most or (above and number == least):
        raise ValueError
    return number


def _parse_whole(value: Any, *, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        raise ValueError
    number = int(value)
    if not least <= number <= most:
        raise ValueError
    return number


def _parse_pattern(value: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not pattern.fullmatch(value):
        raise ValueError
    return value


def _parse_name(value: Any) -> str:
    return _parse_pattern(value, _NAME)


def _parse_names(value: Any) -> tuple[str, ...]:
    """Read a list of names, or the same with commas between them."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise TypeError
    return tuple(_parse_name(each.strip()) for each in given if each.strip())


def _parse_host(value: Any) -> str:
    return _parse_pattern(value, _HOST)


def _parse_path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError
    if not is_plain_text(str(value)):
        raise ValueError
    try:
        return Path(value).expanduser()
    except RuntimeError:  # ~NAME of a user that there is not
        raise ValueError from None


def _parse_paths(value: Any) -> tuple[Path, ...]:
    given = value.split(os.pathsep) if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise TypeError
    return tuple(_parse_path(each) for each in given if each != "")


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that no report, log line or error shows."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        loaded_secret(self.text)

    def __str__(self) -> str:
        return "(secret)"


def _parse_secret(value: Any) -> Secret:
    if not isinstance(value, str) or len(value) < SECRET_LETTERS_MIN:
        raise ValueError
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
    return tuple(_parse_job(kind, table) for kind, table in _parse_table(value).items())


def _parse_job(kind: str, table: Any) -> JobSettings:
    if not isinstance(table, Mapping):
        raise TypeError
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"[jobs.{kind}]: there is no job {kind!r}; there are {', '.join(KINDS)}{hint}")
    if unknown := sorted(set(table) - set(_JOB_READERS)):
        raise ConfigError(f"[jobs.{kind}] has no {unknown[0]!r}; it may have: {', '.join(_JOB_READERS)}")
    read: dict[str, Any] = {}
    for name, given in table.items():
        allowed, reader = _JOB_READERS[name]
        try:
            read[name] = reader(given)
        except (ValueError, TypeError):
            raise ConfigError(f"{name} of [jobs.{kind}] is {given!r}; it must be {allowed}") from None
    return JobSettings(kind=kind, **read)


def _parse_command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        raise TypeError
    return tuple(value)


def _parse_variables(value: Any) -> tuple[str, ...]:
    names = _parse_command(value) if value != [] else ()
    for name in names:
        if not name.isidentifier() or name.startswith("RINGRIFT_"):  # what is ours is not for jobs
            raise ValueError
    return names


def _parse_cpus(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    if any(isinstance(each, str) for each in value):
        raise TypeError
    return tuple(_parse_whole(each, least=0, most=65_535) for each in value)


def _parse_duration(value: Any) -> float:
    return _parse_number(value, least=0.0, most=31_536_000.0, above=True)


_JOB_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "command": ('a list of words, such as ["python", "my_trainer.py"]', _parse_command),
    "timeout_s": ("a number of seconds above 0, at most a year", _parse_duration),
    "silence_s": ("a number of seconds above 0, at most a year", _parse_duration),
    "memory_mb": (
        "a whole number from 1 to 1000000000",
        lambda v: _parse_whole(v, least=1, most=1_000_000_000),
    ),
    "nice": ("a whole number from 0 to 19", lambda v: _parse_whole(v, least=0, most=19)),
    "env": (
        'a list of names of variables, such as ["MY_TOKEN"], none that begins with RINGRIFT_',
        _parse_variables,
    ),
    "cpus": ("a list of numbers of cores, such as [0, 1]", _parse_cpus),
}


def _parse_table(value: Any) -> dict[str, Any]:
    """Read a table, or the same as JSON from the environment."""
    try:
        table = parse_json(value) if isinstance(value, str) else value
    except NoDocument as error:
        raise ConfigError(f"a table is a JSON object there: {error}") from None
    if not isinstance(table, dict):
        raise TypeError
    _check_plain(table, depth=TABLE_DEPTH_MAX)
    return table


def _check_plain(value: Any, *, depth: int) -> None:
    """What no table may hold, whoever reads it: deep nesting, numbers without an end, unprintable text."""
    if depth < 0:
        raise ConfigError(f"tables may lie {TABLE_DEPTH_MAX} deep in each other, not more")
    if isinstance(value, dict | list):
        for each in value.items() if isinstance(value, dict) else value:
            for part in each if isinstance(each, tuple) else (each,):
                _check_plain(part, depth=depth - 1)
    elif isinstance(value, str) and not is_plain_text(value):
        raise ConfigError(f"the text {value!r} has control characters, or bytes that are not UTF-8")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"it has the number {value}; numbers must be finite")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError("it has a number of more than 64 bits")


def _parse_prices(value: Any) -> dict[str, float]:
    return {
        _parse_name(node): _parse_number(price, least=0.0, most=1e6)
        for node, price in _parse_table(value).items()
    }


BOOL = ValueKind("true or false", _parse_bool)
TABLE = ValueKind("a table", _parse_table)
PRICES = ValueKind("a table of names of nodes with the price of an hour", _parse_prices)
JOBS = ValueKind("a table per kind of job, such as [jobs.train]", _parse_jobs)
SECRET = ValueKind(f"a text of at least {SECRET_LETTERS_MIN} letters", _parse_secret, is_secret=True)
PATH = ValueKind("a file path without control characters, in UTF-8", _parse_path)
PORT = ValueKind(
    "a port number from 0 (any free port) to 65535", lambda v: _parse_whole(v, least=0, most=65_535)
)
NAME = ValueKind("1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit", _parse_name)
NAMES = ValueKind("a list of names", _parse_names)
PATHS = ValueKind("a list of file paths, or one text with ':' between them", _parse_paths)
HOST = ValueKind("a host name or IP address", _parse_host)
SECONDS = ValueKind(
    "a number of seconds above 0, at most 604800",
    lambda v: _parse_number(v, least=0.0, most=604_800.0, above=True),
)
SECONDS_OR_ZERO = ValueKind(
    "a number of seconds from 0 to 604800",
    lambda v: _parse_number(v, least=0.0, most=604_800.0),
)
LEASE = ValueKind(
    f"a number of seconds from {LEASE_S_MIN:g} to 86400",
    lambda v: _parse_number(v, least=LEASE_S_MIN, most=86_400.0),
)
HOURS = ValueKind(
    "a number of hours above 0, at most 8760",
    lambda v: _parse_number(v, least=0.0, most=8760.0, above=True),
)
COUNT = ValueKind("a whole number from 1 to 100000000", lambda v: _parse_whole(v, least=1, most=100_000_000))
COUNT_OR_ZERO = ValueKind(
    "a whole number from 0 to 100000000", lambda v: _parse_whole(v, least=0, most=100_000_000)
)
