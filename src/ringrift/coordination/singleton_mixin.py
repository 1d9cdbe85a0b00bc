"""Five ways to have one instance of a class. All keep it in the process scope, and are thread-safe.

| variant | who gets the same object |
|---|---|
| `SingletonMixin` | whoever calls `get_instance()` on the class |
| `SingletonMeta` | whoever calls the class |
| `singleton(Class)` | whoever calls the function that it returns |
| `KeyedSingleton` | whoever calls `get_instance(key)` with an equal key |
| `AsyncSingleton` | whoever awaits `get_instance()`; it is opened first, once |

Asked again with other arguments than the instance was made with, each refuses (`ConfigError`). Dropping all
of them at once is `process_scope().clear()`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any, Self, TypeVar

from ringrift.process import SingletonMixin, process_scope

__all__ = [
    "AsyncSingleton",
    "KeyedSingleton",
    "SingletonMeta",
    "SingletonMixin",
    "create_singleton_accessors",
    "singleton",
]

T = TypeVar("T")


class SingletonMeta(type):
    """Calling the class gives the one instance."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return process_scope().get_made_with(cls, super().__call__, *args, **kwargs)

    def reset_instance(cls) -> Any:
        """Forget the instance and return it, so that the caller can close it."""
        return process_scope().drop(cls)


class _ByKey:
    """The instances of all keyed classes."""

    def __init__(self) -> None:
        # Reentrant: a constructor may ask for another keyed instance.
        self.lock = threading.RLock()
        self.instances: dict[tuple[type[Any], Hashable], Any] = {}


class KeyedSingleton:
    """One instance for each key, made as `Class(key)`."""

    def __init__(self, key: Hashable) -> None:
        self.key = key

    @classmethod
    def get_instance(cls, key: Hashable) -> Self:
        kept = _by_key()
        with kept.lock:
            if (cls, key) not in kept.instances:
                kept.instances[cls, key] = cls(key)
            found: Self = kept.instances[cls, key]
            return found

    @classmethod
    def keys(cls) -> list[Hashable]:
        return [key for kind, key in tuple(_by_key().instances) if kind is cls]

    @classmethod
    def reset_instance(cls, key: Hashable) -> Self | None:
        """Forget the instance of *key* and return it, so that the caller can close it."""
        kept = _by_key()
        with kept.lock:
            dropped: Self | None = kept.instances.pop((cls, key), None)
            return dropped


def _by_key() -> _ByKey:
    return process_scope().get(_ByKey, _ByKey)


class AsyncSingleton:
    """One instance that must be opened before anybody has it. Lives on one event loop."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._is_open = False

    async def open(self) -> None:
        """Get ready; called once. When it raises, the next caller tries again."""

    @classmethod
    async def get_instance(cls, *args: Any, **kwargs: Any) -> Self:
        """Return the one instance, open."""
        found = process_scope().get_made_with(cls, cls, *args, **kwargs)
        # Those who come while it opens wait here, so nobody gets one that is half open.
        async with found._opening:
            if not found._is_open:
                await found.open()
                found._is_open = True
        return found

    @classmethod
    def reset_instance(cls) -> Self | None:
        """Forget the instance and return it, so that the caller can close it."""
        return process_scope().drop(cls)


def singleton(kind: type[T]) -> Callable[..., T]:
    """Return a function that gives the one instance of *kind*: `get_clock = singleton(Clock)`."""
    return create_singleton_accessors(kind)[0]


def create_singleton_accessors(kind: type[T]) -> tuple[Callable[..., T], Callable[[], T | None]]:
    """Return the functions that give and that drop the one instance of *kind*."""

    def get(*args: Any, **kwargs: Any) -> T:
        return process_scope().get_made_with(kind, kind, *args, **kwargs)

    def reset() -> T | None:
        return process_scope().drop(kind)

    return get, reset
