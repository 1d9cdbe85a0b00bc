"""Ways to have one instance of a class per process. All keep it in the process scope, and are thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

from ringrift.process import process_scope

__all__ = ["SingletonMeta", "SingletonMixin", "singleton"]

T = TypeVar("T")


class SingletonMixin:
    """`get_instance()` makes the one instance of the class it is called on; each subclass has its own."""

    @classmethod
    def get_instance(cls, *args: Any, **kwargs: Any) -> Self:
        """Return the instance; the arguments count only for the call that makes it."""
        return process_scope().get(cls, lambda: cls(*args, **kwargs))

    @classmethod
    def has_instance(cls) -> bool:
        return process_scope().peek(cls) is not None

    @classmethod
    def reset_instance(cls) -> Self | None:
        """Forget the instance and return it, so that the caller can close it."""
        return process_scope().drop(cls)


class SingletonMeta(type):
    """Calling the class gives the one instance."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__call__
        return process_scope().get(cls, lambda: make(*args, **kwargs))


def singleton(kind: type[T]) -> Callable[[], T]:
    """Return a function that gives the one instance of *kind*: `get_clock = singleton(Clock)`."""
    return lambda: process_scope().get(kind, kind)
