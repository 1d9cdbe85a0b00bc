"""The process-wide objects that the public API names, in one place.

`get_router()`, `get_daemon_manager()` and their like each return one object per process. All of them live
in this scope and nowhere else, so that a test (or an embedding program) replaces or drops every one of
them with a single call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Self, TypeVar, cast

from ringrift.errors import ConfigError

T = TypeVar("T")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ProcessScope:
    """One instance per type; creation is guarded, so that two threads get the same object."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # making one object may ask for another
        self._instances: dict[type[Any], Any] = {}
        self._made_with: dict[type[Any], Arguments] = {}

    def get(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the instance of *kind*, making it on first use."""
        # Without the lock: reading a dict is safe, and this is called all the time.
        found = self._instances.get(kind)
        if found is not None:
            return cast(T, found)
        with self._lock:
            if kind not in self._instances:
                self._instances[kind] = make()
            return cast(T, self._instances[kind])

    def get_made_with(self, kind: type[T], make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return the instance of *kind*, made with these arguments on first use.

        Without arguments it returns whatever there is. With others than the instance was made with it raises
        `ConfigError`: they would have no effect.
        """
        with self._lock:
            if kind not in self._instances:
                self._instances[kind] = make(*args, **kwargs)
                self._made_with[kind] = (args, kwargs)
            elif (args or kwargs) and self._made_with.get(kind) != (args, kwargs):
                raise ConfigError(
                    f"this process has its {kind.__name__} already, made with other arguments; "
                    "drop it first with reset_instance()"
                )
            return cast(T, self._instances[kind])

    def peek(self, kind: type[T]) -> T | None:
        """Return the instance if there is one."""
        return cast("T | None", self._instances.get(kind))

    def instances(self) -> tuple[Any, ...]:
        """All that there is now."""
        with self._lock:
            return tuple(self._instances.values())

    def put(self, kind: type[T], instance: T) -> None:
        """Install *instance*, replacing what was there."""
        with self._lock:
            self._instances[kind] = instance
            self._made_with.pop(kind, None)

    def drop(self, kind: type[T]) -> T | None:
        """Forget the instance of *kind* and return it, so that the caller can close it."""
        with self._lock:
            self._made_with.pop(kind, None)
            return cast("T | None", self._instances.pop(kind, None))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._instances.clear()
            self._made_with.clear()


# The one global object of the package.
_SCOPE = ProcessScope()


def process_scope() -> ProcessScope:
    """Return this process's scope."""
    return _SCOPE


def getter_of(name: str, kind: type[T]) -> Callable[[], T]:
    """Return the function *name* that gives the one *kind* of this process, made on first use."""
    make = kind._for_this_process if issubclass(kind, SingletonMixin) else kind

    def get() -> T:
        return process_scope().get(kind, make)

    about = f"Return the {kind.__name__} of this process, made on first use.\n\n{kind.__doc__ or ''}"
    return _named(get, name, about, kind, gives=kind)


def reset_of(name: str, kind: type[T]) -> Callable[[], T | None]:
    """Return the function *name* that drops the one *kind* of this process, and gives back what there was.

    For tests, and for whoever wants one with other options; what runs must be stopped first.
    """

    def reset() -> T | None:
        return process_scope().drop(kind)

    about = f"Forget the {kind.__name__} of this process and return it; one that runs must be stopped first."
    return _named(reset, name, about, kind, gives=kind | None)


def _named(call: Callable[[], T], name: str, about: str, kind: type[Any], *, gives: Any) -> Callable[[], T]:
    """Have help, logs and tracebacks show *call* as if it were written out where *kind* is."""
    shown = cast(FunctionType, call)
    shown.__name__ = shown.__qualname__ = name
    shown.__code__ = shown.__code__.replace(co_name=name, co_qualname=name)
    shown.__doc__, shown.__module__, shown.__annotations__ = about, kind.__module__, {"return": gives}
    return call


class SingletonMixin:
    """`get_instance()` gives the one instance of the class it is called on; each subclass has its own."""

    @classmethod
    def get_instance(cls, *args: Any, **kwargs: Any) -> Self:
        """Return the instance, made on first use; `ConfigError` for arguments that come too late."""
        return process_scope().get_made_with(cls, cls._for_this_process, *args, **kwargs)

    @classmethod
    def has_instance(cls) -> bool:
        return process_scope().peek(cls) is not None

    @classmethod
    def reset_instance(cls) -> Self | None:
        """Forget the instance and return it; one that runs must be stopped first."""
        return process_scope().drop(cls)

    @classmethod
    def _for_this_process(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the instance; for classes whose parts are those of the process."""
        return cls(*args, **kwargs)
