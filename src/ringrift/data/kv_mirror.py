"""A picture of what stands under some keys, kept between looks: each look reads only what changed since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from ringrift.engine.ports import Change, KeyValue
from ringrift.runtime import Runtime

T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

PAGE = 500  # changes that are taken in at a time: a few milliseconds of the event loop
REREAD_S = 6 * 3_600.0  # deletions that lie longer back may be forgotten by the store


class Picture(Protocol[V_co]):
    """Takes changes in, in order. What `view` returns must not change when more come."""

    def apply(self, change: Change) -> None: ...

    def view(self) -> V_co: ...


class KvMirror(Generic[V]):
    """Keeps a picture of the keys under *prefixes*. May be shared by tasks and event loops."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime, prefixes: tuple[str, ...], make: Callable[[], Picture[V]]
    ) -> None:
        self._kv, self._runtime, self._prefixes, self._make = kv, runtime, prefixes, make
        self._lock = threading.Lock()
        self._read_s = runtime.now_s()
        self._picture, self._revisions = make(), dict.fromkeys(prefixes, 0)

    async def refresh(self) -> V:
        """Return everything as it is now."""
        now_s = self._runtime.now_s()
        with self._lock:
            if abs(now_s - self._read_s) > REREAD_S:
                self._picture, self._revisions = self._make(), dict.fromkeys(self._prefixes, 0)
            self._read_s, picture, revisions = now_s, self._picture, self._revisions
        for prefix in self._prefixes:
            await self._catch_up(prefix, picture, revisions)
        with self._lock:
            return picture.view()

    async def _catch_up(self, prefix: str, picture: Picture[V], revisions: dict[str, int]) -> None:
        complete = False
        while not complete:
            page = await self._kv.changes(prefix, after=revisions[prefix], limit=PAGE)
            complete = page.complete
            with self._lock:
                done = revisions[prefix]  # others may have been faster
                for change in page.changes:
                    if change.revision > done:
                        picture.apply(change)
                revisions[prefix] = max(done, page.revision)


class RecordsPicture(Generic[T]):
    """Records by the rest of their key."""

    def __init__(self, prefix: str, read: Callable[[str, bytes], T]) -> None:
        self._prefix, self._read = prefix, read
        self._records: dict[str, T] = {}
        self._view: Mapping[str, T] | None = None

    def apply(self, change: Change) -> None:
        self._view = None
        name = change.key.removeprefix(self._prefix)
        if change.value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = self._read(change.key, change.value)

    def view(self) -> Mapping[str, T]:
        if self._view is None:
            self._view = dict(self._records)
        return self._view
