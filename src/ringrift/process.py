"""The process-wide objects that the public API names, in one place.

`get_router()`, `get_daemon_manager()` and their like each return one object per process. All of them live
in this scope and nowhere else, so that a test (or an embedding program) replaces or drops every one of
them with a single call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ProcessScope:
    """One instance per type; creation is guarded, so that two threads get the same object."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._instances: dict[type[Any], Any] = {}

    def get(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the instance of *kind*, making it on first use."""
        found = self._instances.get(kind)
        if found is not None:
            return cast(T, found)
        with self._lock:
            if kind not in self._instances:
                self._instances[kind] = make()
            return cast(T, self._instances[kind])

    def peek(self, kind: type[T]) -> T | None:
        """Return the instance if there is one."""
        return cast("T | None", self._instances.get(kind))

    def put(self, kind: type[T], instance: T) -> None:
        """Install *instance*, replacing what was there."""
        with self._lock:
            self._instances[kind] = instance

    def drop(self, kind: type[T]) -> T | None:
        """Forget the instance of *kind* and return it, so that the caller can close it."""
        with self._lock:
            return cast("T | None", self._instances.pop(kind, None))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._instances.clear()


_SCOPE = ProcessScope()


def process_scope() -> ProcessScope:
    """Return this process's scope."""
    return _SCOPE
