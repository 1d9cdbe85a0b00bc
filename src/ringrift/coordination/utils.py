"""Two small collections with bounds: recent things, and the callbacks to tell about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["BoundedHistory", "CallbackRegistry"]

T = TypeVar("T")


class BoundedHistory(Generic[T]):
    """The newest *max_size* items; older ones fall out and are counted."""

    def __init__(self, max_size: int = 1000) -> None:
        if max_size < 1:
            raise ValueError("max_size must be at least 1")
        self._items: deque[T] = deque(maxlen=max_size)
        self.total = 0

    def append(self, item: T) -> None:
        self._items.append(item)
        self.total += 1

    def recent(self, count: int = 10) -> list[T]:
        """Return up to *count* items, oldest first."""
        return list(self._items)[-count:] if count > 0 else []

    def clear(self) -> None:
        self._items.clear()

    @property
    def dropped(self) -> int:
        return self.total - len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)


class CallbackRegistry:
    """Callbacks by topic; a callback is called once however often it was registered."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[Callable[..., None], None]] = {}

    def register(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        """Add *callback* and return what takes it away again."""
        self._by_topic.setdefault(topic, {})[callback] = None
        return lambda: self.unregister(topic, callback)

    def unregister(self, topic: str, callback: Callable[..., None]) -> None:
        self._by_topic.get(topic, {}).pop(callback, None)

    def notify(self, topic: str, *args: Any) -> int:
        """Call all callbacks of *topic* in order; an error of one reaches the caller. Return how many."""
        # A copy: a callback may take itself away.
        callbacks = tuple(self._by_topic.get(topic, {}))
        for callback in callbacks:
            callback(*args)
        return len(callbacks)
