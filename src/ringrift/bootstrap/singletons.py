"""Ways to have one instance of a class per process. All keep it in the process scope, and are thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ringrift.process import SingletonMixin, process_scope

__all__ = ["SingletonMeta", "SingletonMixin", "singleton"]

__all__ = ["SingletonMeta", "SingletonMixin", "singleton"]

T = TypeVar("T")


class SingletonMeta(type):
    """Calling the class gives the one instance."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__call__
        return process_scope().get_made_with(cls, make, *args, **kwargs)


def singleton(kind: type[T]) -> Callable[[], T]:
    """Return a function that gives the one instance of *kind*: `get_clock = singleton(Clock)`."""
    return lambda: process_scope().get(kind, kind)
