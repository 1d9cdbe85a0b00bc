"""A picture cut into parts, so that a watcher is sent only what changed since the part it saw last.

Every part carries the number of the picture in which it last changed. A watcher names the last number it
has; whatever changed later is all it needs, however long it was away. Nothing is queued for anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ringrift.learning.run_status import ConfigStatus, RunStatus
from ringrift.web.snapshot import ProbeSnapshot

GONE = b"null"
PLOTTED = ("curve", "losses")  # long and seldom new: parts of their own

_encoder = msgspec.json.Encoder(enc_hook=str)


class Sections:
    """The parts of the newest picture. Belongs to one thread."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._number = 0
        self._parts: dict[str, tuple[int, bytes]] = {}

    @property
    def mark(self) -> str:
        """Names the newest picture; of no meaning to a later process."""
        return f"{self._boot}.{self._number}"

    def take(self, snapshot: ProbeSnapshot) -> None:
        """Note which parts are new. A part that is gone is told as null."""
        fresh = dict(_parts(snapshot))
        stale = {name: GONE for name, (_, body) in self._parts.items() if name not in fresh and body != GONE}
        changed = {
            name: body
            for name, body in {**fresh, **stale}.items()
            if name not in self._parts or self._parts[name][1] != body
        }
        if changed:
            self._number += 1
            self._parts |= {name: (self._number, body) for name, body in changed.items()}

    def since(self, mark: str) -> tuple[bool, dict[str, msgspec.Raw]]:
        """Return whether this is everything, and the parts that changed after *mark*."""
        boot, _, digits = mark.rpartition(".")
        known = boot == self._boot and digits.isascii() and digits.isdigit() and len(digits) < 16
        if not known or int(digits) > self._number:
            return True, {name: msgspec.Raw(body) for name, (_, body) in self._parts.items() if body != GONE}
        seen = int(digits)
        return False, {name: msgspec.Raw(body) for name, (at, body) in self._parts.items() if at > seen}


def _parts(snapshot: ProbeSnapshot) -> Iterator[tuple[str, bytes]]:
    yield "daemons", _encoder.encode(snapshot.daemons)
    yield "events", _encoder.encode(snapshot.events)
    yield "node", _encoder.encode({"node": snapshot.node_id, "version": snapshot.version})
    run = snapshot.run
    if run is None:
        return
    yield "run", _encoder.encode(_head(run))
    yield "decisions", _encoder.encode(run.decisions)
    yield "findings", _encoder.encode(run.findings)
    yield "queue", _encoder.encode(run.queue)
    for key, config in run.configs.items():
        yield f"config/{key}", _encoder.encode(_numbers(config))
        for plotted in PLOTTED:
            yield f"{plotted}/{key}", _encoder.encode(getattr(config, plotted))


def _head(run: RunStatus) -> Mapping[str, Any]:
    return {name: getattr(run, name) for name in ("at_s", "started_s", "node", "state", "workers", "paused")}


def _numbers(config: ConfigStatus) -> Mapping[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__ if name not in PLOTTED}
