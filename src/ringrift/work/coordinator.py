"""What every coordinator of the loop has in common: it hears what the catalog says, and says how it is.

A coordinator shows the one truth. What it hears changes what it shows, or wakes the loop; it decides nothing
that another part decides too. Events may come twice, late or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringrift.events.catalog.table import CATALOG
from ringrift.events.event import RouterEvent


def heard_by(component: str) -> tuple[str, ...]:
    """Return the events that the catalog says *component* must hear."""
    return tuple(name for name, spec in CATALOG.items() if component in spec.consumed_by)


# What is known of nodes and configs from what others said: the newest word on each, bounded.


NODES_MAX = 2000
CONFIGS_MAX = 500
NAMES_MAX = 32
NOTE_KEEP_S = 6 * 3600.0  # a word that nobody repeated for so long says nothing any more

AWAY = "away"  # nothing can be placed there
STRAINED = "strained"  # it should get less


@dataclass(frozen=True, slots=True)
class NodeNote:
    """Why a node gets less work, or none."""

    state: str
    event: str
    reason: str
    at_s: float


class NodeNotes:
    """Nodes that are not simply well. A note runs out by itself, so that no node is forgotten for good."""

    def __init__(self) -> None:
        self._notes: dict[str, NodeNote] = {}

    def note(self, event: RouterEvent, state: str) -> None:
        node = str(event.payload.get("node_id") or "")
        if not node:
            return
        if node not in self._notes and len(self._notes) >= NODES_MAX:
            del self._notes[min(self._notes, key=lambda name: self._notes[name].at_s)]
        words = event.payload.get("reason") or event.payload.get("resource_type") or ""
        self._notes[node] = NodeNote(state, event.event_type, str(words), event.timestamp)

    def clear(self, event: RouterEvent) -> None:
        self._notes.pop(str(event.payload.get("node_id") or ""), None)

    def factor(self, node: str, now_s: float) -> float:
        """Return which part of its usual work a node gets: 1, half, or none."""
        note = self.current(now_s).get(node)
        return 1.0 if note is None else 0.0 if note.state == AWAY else 0.5

    def current(self, now_s: float) -> dict[str, NodeNote]:
        for node, note in list(self._notes.items()):
            if now_s - note.at_s > NOTE_KEEP_S:
                del self._notes[node]
        return dict(self._notes)


class ConfigSignals:
    """The newest event of each type by config, as others meant it: shown, never multiplied."""

    def __init__(self) -> None:
        self._signals: dict[str, dict[str, dict[str, Any]]] = {}

    def note(self, event: RouterEvent) -> None:
        config = str(event.payload.get("config_key") or "*")
        if config not in self._signals and len(self._signals) >= CONFIGS_MAX:
            del self._signals[next(iter(self._signals))]
        plain = {name: value for name, value in event.payload.items() if _is_small(value)}
        self._signals.setdefault(config, {})[event.event_type] = {"at_s": event.timestamp, **plain}

    def of(self, config: str) -> Mapping[str, Mapping[str, Any]]:
        """Signals of *config* and of all configs."""
        return {**self._signals.get("*", {}), **self._signals.get(config, {})}

    def value(self, config: str, event: str, field: str, default: float) -> float:
        found = self.of(config).get(event, {}).get(field)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default

    def all(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {config: dict(signals) for config, signals in self._signals.items()}


def _is_small(value: Any) -> bool:
    if isinstance(value, Mapping):  # numbers by name, as weights are
        return len(value) <= NAMES_MAX and all(isinstance(each, int | float) for each in value.values())
    return isinstance(value, int | float | bool) or (isinstance(value, str) and len(value) <= 500)
