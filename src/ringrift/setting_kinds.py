"""How each kind of setting is declared and read, and what a person is told about it.

A kind is a type that msgspec checks, with the words for what is allowed. Values come as text from the
environment and typed from the config file. Nothing is rounded, cut or guessed: a port of 1.5, a list written
as a text or a number that is not finite is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta, MsgspecError

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.foreign_files.documents import NoDocument, is_plain_text, parse_json
from ringrift.jobs.kinds import KINDS
from ringrift.redaction import loaded_secret

SECRET_LETTERS_MIN = 16
LEASE_S_MIN = 1.0  # below that a worker that is held up for a moment loses its job
TABLE_DEPTH_MAX = 8
SHOWN_MAX = 200  # of a wrong value in an error
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


# How a value is read.


@dataclass(frozen=True, slots=True)
class Reader:
    """In the annotation of a kind: how it is brought into the form that msgspec checks."""

    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A declared type, what a person is told of it, and how a value gets there."""

    declared: Any
    allowed: str
    read: Callable[[Any], Any]
    is_secret: bool  # no message shows a wrong value


def read_as(declared: Any, given: Any, place: str) -> Any:
    """Return *given* as a value of the *declared* type; `ConfigError` says at which *place* what is wrong."""
    kind = _kind_of(declared)
    try:
        return convert_to(kind.read(given), kind.declared, dec_hook=_as_it_is)
    except ConfigError as error:  # of one entry of a table
        raise ConfigError(f"{place}: {error}") from None
    except (ValueError, TypeError, KeyError, OverflowError, MsgspecError):
        if kind.is_secret:  # the wrong value may be the secret with a slip in it
            raise ConfigError(f"{place} must be {kind.allowed}") from None
        shown = repr(given)
        shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"
        raise ConfigError(f"{place} is {shown}; it must be {kind.allowed}") from None


def declared_types(settings: type) -> dict[str, Any]:
    """The types of the fields of *settings*, with what is said of them."""
    return get_type_hints(settings, include_extras=True)


@cache
def _kind_of(declared: Any) -> SettingKind:
    # `X | None` is read as X: a setting that is left out is not there.
    found = next((each for each in get_args(declared) if get_origin(each) is Annotated), declared)
    base, *more = get_args(found)
    allowed = next(each.description for each in more if isinstance(each, Meta) and each.description)
    read = next((each.read for each in more if isinstance(each, Reader)), _READERS.get(base, _unread))
    return SettingKind(found, allowed, read, is_secret=base is Secret)


def _as_it_is(declared: type, value: Any) -> Any:
    """Of a type that msgspec does not know: its reader has made it."""
    if not isinstance(value, declared):
        raise TypeError
    return value


def _unread(given: Any) -> Any:
    return given


def _read_bool(given: Any) -> Any:
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    return words[given.strip().lower()] if isinstance(given, str) else given


def _read_whole(given: Any) -> Any:
    # msgspec takes 1e3 for a whole number; who writes that means something else.
    if isinstance(given, str) and not _WHOLE.fullmatch(given.strip()):
        raise ValueError
    return int(given) if isinstance(given, str) else given


def _read_number(given: Any) -> Any:
    return float(given) if isinstance(given, str) else given


_READERS: Mapping[Any, Callable[[Any], Any]] = {bool: _read_bool, int: _read_whole, float: _read_number}


def _read_names(given: Any) -> Any:
    """Read a list, or the same with commas between the names."""
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list):
        raise TypeError
    return [each for name in listed if (each := name.strip() if isinstance(name, str) else name) != ""]


def _read_path(given: Any) -> Path:
    if not isinstance(given, str | Path) or not str(given):
        raise TypeError
    if not is_plain_text(str(given)):
        raise ValueError
    try:
        return Path(given).expanduser()
    except RuntimeError:  # ~NAME of a user that there is not
        raise ValueError from None


def _read_folders(given: Any) -> tuple[Path, ...]:
    """Read a list of full paths, or the same with colons between them, as in PATH."""
    listed = given.split(os.pathsep) if isinstance(given, str) else given
    if not isinstance(listed, list):
        raise TypeError
    folders = tuple(_read_path(each) for each in listed if each != "")
    if not all(folder.is_absolute() for folder in folders):
        raise ValueError
    return folders


def _read_table(given: Any) -> dict[str, Any]:
    """Read a table, or the same as JSON from the environment."""
    try:
        table = parse_json(given) if isinstance(given, str) else given
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


def _read_prices(given: Any) -> dict[str, Any]:
    return {node: _read_number(price) for node, price in _read_table(given).items()}


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that no report, log line or error shows."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        loaded_secret(self.text)

    def __str__(self) -> str:
        return "(secret)"


def _read_secret(given: Any) -> Secret:
    if not isinstance(given, str) or len(given) < SECRET_LETTERS_MIN:
        raise ValueError
    return Secret(given)


# The kinds.


Bool = Annotated[bool, Meta(description="true or false")]
Port = Annotated[int, Meta(ge=0, le=65_535, description="a port number from 0 (any free port) to 65535")]
Count = Annotated[int, Meta(ge=1, le=100_000_000, description="a whole number from 1 to 100000000")]
CountOrZero = Annotated[int, Meta(ge=0, le=100_000_000, description="a whole number from 0 to 100000000")]
Seconds = Annotated[
    float, Meta(gt=0.0, le=604_800.0, description="a number of seconds above 0, at most 604800")
]
SecondsOrZero = Annotated[
    float, Meta(ge=0.0, le=604_800.0, description="a number of seconds from 0 to 604800")
]
LeaseSeconds = Annotated[
    float,
    Meta(ge=LEASE_S_MIN, le=86_400.0, description=f"a number of seconds from {LEASE_S_MIN:g} to 86400"),
]
Hours = Annotated[float, Meta(gt=0.0, le=8760.0, description="a number of hours above 0, at most 8760")]
Name = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z",
        description="1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit",
    ),
]
Names = Annotated[tuple[Name, ...], Meta(description="a list of names"), Reader(_read_names)]
Host = Annotated[
    str,
    Meta(
        # A leading dash would be an option of ssh or rsync.
        pattern=r"\A[A-Za-z0-9:\[][A-Za-z0-9.:%\[\]_-]{0,254}\Z",
        description="a host name or IP address",
    ),
]
FilePath = Annotated[
    Path, Meta(description="a file path without control characters, in UTF-8"), Reader(_read_path)
]
Folders = Annotated[
    tuple[Path, ...],
    Meta(description="a list of full paths of folders, with colons between them"),
    Reader(_read_folders),
]
SecretText = Annotated[
    Secret, Meta(description=f"a text of at least {SECRET_LETTERS_MIN} letters"), Reader(_read_secret)
]
Table = Annotated[Mapping[str, Any], Meta(description="a table"), Reader(_read_table)]
Prices = Annotated[
    Mapping[Name, Annotated[float, Meta(ge=0.0, le=1e6)]],
    Meta(description="a table of names of nodes with the price of an hour"),
    Reader(_read_prices),
]

# What is said of one kind of job.

Command = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Meta(min_length=1, description='a list of words, such as ["python", "my_trainer.py"]'),
]
JobSeconds = Annotated[
    float, Meta(gt=0.0, le=31_536_000.0, description="a number of seconds above 0, at most a year")
]
Megabytes = Annotated[int, Meta(ge=1, le=1_000_000_000, description="a whole number from 1 to 1000000000")]
Niceness = Annotated[int, Meta(ge=0, le=19, description="a whole number from 0 to 19")]
Cores = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=65_535)], ...],
    Meta(description="a list of numbers of cores, such as [0, 1]"),
]
Variables = Annotated[
    # What is ours is not for jobs. Other names than these no shell can set.
    tuple[Annotated[str, Meta(pattern=r"\A(?!RINGRIFT_)[A-Za-z_][A-Za-z0-9_]*\Z")], ...],
    Meta(
        description='a list of names of variables, such as ["MY_TOKEN"], of letters a to z, digits and "_", '
        "none that begins with a digit or RINGRIFT_"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What a user says of one kind of job: the table `[jobs.KIND]`."""

    kind: str
    command: Command = ()  # instead of our own program
    timeout_s: JobSeconds | None = None  # None: from measured durations
    silence_s: JobSeconds | None = None  # longest time without a line
    memory_mb: Megabytes | None = None
    nice: Niceness = 5  # jobs give way to the processes that control them
    cpus: Cores = ()  # none: all
    env: Variables = ()  # variables of the worker that the job gets beside the usual ones


def _read_jobs(given: Any) -> tuple[JobSettings, ...]:
    """Read a table of tables, or the same as JSON from the environment."""
    return tuple(_read_job(kind, table) for kind, table in _read_table(given).items())


def _read_job(kind: str, table: Any) -> JobSettings:
    if not isinstance(table, Mapping):
        raise TypeError
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"[jobs.{kind}]: there is no job {kind!r}; there are {', '.join(KINDS)}{hint}")
    declared = declared_types(JobSettings)
    del declared["kind"]
    if unknown := sorted(set(table) - set(declared)):
        raise ConfigError(f"[jobs.{kind}] has no {unknown[0]!r}; it may have: {', '.join(declared)}")
    read = {name: read_as(declared[name], given, f"{name} of [jobs.{kind}]") for name, given in table.items()}
    return JobSettings(kind=kind, **read)


Jobs = Annotated[
    tuple[JobSettings, ...],
    Meta(description="a table per kind of job, such as [jobs.train]"),
    Reader(_read_jobs),
]
