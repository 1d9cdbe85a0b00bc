"""Small tools that programs around the machine need: traces, locks, and YAML files.

A file lock excludes processes of one machine and ends with the process that holds it. For a lock of the whole
data folder use a lease of the store (`NamedLease`), which has a fencing token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ringrift.coordination.tracing import new_trace, with_trace
from ringrift.engine.arguments import check_wait
from ringrift.engine.blocking import blocking
from ringrift.engine.leases import LeaseConfig, LeaseHolder, NamedLease, lease_holder
from ringrift.engine.lock_files import LockFile
from ringrift.errors import ConfigError, ForeignFile, Unavailable
from ringrift.events.tracing import (
    TraceContext,
    continued,
    extract,
    get_trace_context,
    get_trace_id,
    inject,
    span,
    traced,
)
from ringrift.files import make_private_folder, replace_file
from ringrift.runtime import Runtime, system_runtime

__all__ = [
    "LeaseConfig",
    "LeaseHolder",
    "LockFile",
    "NamedLease",
    "TraceContext",
    "async_file_lock",
    "continued",
    "extract",
    "file_lock",
    "get_trace_context",
    "get_trace_id",
    "inject",
    "lease_holder",
    "load_yaml",
    "new_trace",
    "save_yaml",
    "span",
    "traced",
    "with_trace",
]

# Short against what is done under such a lock, and still only twenty system calls a second.
LOOK_S = 0.05
# A file of settings is far smaller; a larger one is a mistake, and reading it would block the caller.
YAML_BYTES_MAX = 4 << 20
_ADVICE = "Nothing was changed. Mend the file by hand"


@asynccontextmanager
async def async_file_lock(
    path: Path | str, *, wait_seconds: float = 10.0, runtime: Runtime | None = None
) -> AsyncIterator[None]:
    """Hold the lock file *path* for a block; `Unavailable` if another process has it for *wait_seconds*."""
    lock = await _locked(Path(path), wait_seconds, runtime or system_runtime())
    try:
        yield
    finally:
        lock.close()


@contextmanager
def file_lock(path: Path | str, *, wait_seconds: float = 10.0) -> Iterator[None]:
    """`async_file_lock` for code without an event loop."""
    lock = _locked_blocking(Path(path), wait_seconds, system_runtime())
    try:
        yield
    finally:
        lock.close()


async def _locked(path: Path, wait_seconds: float, runtime: Runtime) -> LockFile:
    check_wait("wait_seconds", wait_seconds)
    make_private_folder(path.parent)
    lock, until_s = LockFile(path), runtime.monotonic_s() + wait_seconds
    while not lock.try_lock():
        # The kernel tells nobody when a lock is free, so this looks.
        if runtime.monotonic_s() >= until_s:
            lock.close()
            raise Unavailable(f"another process holds {path}, for {wait_seconds:g} s now")
        await runtime.sleep(LOOK_S)
    return lock


_locked_blocking = blocking(_locked, timeout_s=10.0, plus="wait_seconds")


def load_yaml(path: Path | str, *, default: Any = None) -> Any:
    """Read plain values from a YAML file that its user wrote; *default* if there is no such file.

    Tags that would make objects are refused. Raises `ForeignFile` for what is not YAML.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= YAML_BYTES_MAX else b""
    except FileNotFoundError:
        return default
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name the file in it") from None
    if size > YAML_BYTES_MAX:
        raise ForeignFile(path, found=f"{size} bytes, and {YAML_BYTES_MAX} are allowed", advice=_ADVICE)
    try:
        found = msgspec.yaml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ForeignFile(path, found=f"no YAML ({line})", advice=_ADVICE) from None
    return default if found is None else found


def save_yaml(path: Path | str, values: Any) -> None:
    """Write plain values as YAML, whole or not at all; `ConfigError` for what YAML cannot hold."""
    path = Path(path)
    try:
        # Encoded before the folder is made: a refused value leaves nothing behind.
        content = msgspec.yaml.encode(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    make_private_folder(path.parent)
    replace_file(path, content)
