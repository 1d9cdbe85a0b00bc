"""How far a sync is: files and bytes of all its trips together, and when it will probably be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ringrift.data.sync.plans import SyncPlan, Trip
from ringrift.data.transfer.contract import TransferProgress
from ringrift.runtime import Runtime


@dataclass(slots=True)
class _TripProgress:
    """One trip: what its ended calls moved, and how far the present one is."""

    files: int = 0
    bytes: int = 0
    now: TransferProgress | None = None

    @property
    def files_done(self) -> int:
        return self.files + (0 if self.now is None else self.now.files_done)

    @property
    def bytes_done(self) -> int:
        return self.bytes + (0 if self.now is None else self.now.bytes_done)


@dataclass(slots=True)
class SyncProgress:
    """The progress of one plan that is being carried out, or of the last one."""

    runtime: Runtime
    phase: str = "idle"
    files_total: int = 0
    bytes_total: int = 0
    started_s: float | None = None
    last_update_s: float | None = None
    error: str = ""
    _trips: dict[tuple[str, bool], _TripProgress] = field(default_factory=dict)

    def begin(self, plan: SyncPlan) -> None:
        """Start anew with what *plan* moves."""
        trips = (*plan.fetches, *plan.sends)
        self.phase, self.error, self._trips = "transfer", "", {}
        self.files_total = sum(len(trip.artifacts) for trip in trips)
        self.bytes_total = sum(each.size for trip in trips for each in trip.artifacts)
        self.started_s = self.last_update_s = self.runtime.now_s()

    def show(self, trip: Trip, now: TransferProgress) -> None:
        """Take in how far the present call of a trip is."""
        self._trip(trip).now = now
        self.last_update_s = self.runtime.now_s()

    def call_ended(self, trip: Trip, *, files: int, size: int, error: str = "") -> None:
        """A call is over; *files* of *size* bytes in all were asked for, whatever became of them."""
        known = self._trip(trip)
        known.files, known.bytes, known.now = known.files + files, known.bytes + size, None
        self.last_update_s, self.error = self.runtime.now_s(), error or self.error

    def end(self) -> None:
        self.phase = "idle"

    def _trip(self, trip: Trip) -> _TripProgress:
        return self._trips.setdefault((trip.node, trip.fetch), _TripProgress())

    @property
    def files_done(self) -> int:
        return sum(trip.files_done for trip in self._trips.values())

    @property
    def bytes_done(self) -> int:
        return sum(trip.bytes_done for trip in self._trips.values())

    @property
    def percent(self) -> float:
        """By bytes, which say more of the time than files do; 100 if there was nothing to do."""
        done, total = self.bytes_done, self.bytes_total
        if not total:
            done, total = self.files_done, self.files_total
        return 100.0 if not total else min(100.0, 100.0 * done / total)

    @property
    def estimated_completion_s(self) -> float | None:
        """At the mean pace so far; None before anything moved, and when nothing is under way."""
        if self.phase == "idle" or self.started_s is None or not self.bytes_done:
            return None
        now_s = self.runtime.now_s()
        left = max(0, self.bytes_total - self.bytes_done)
        return now_s + max(0.0, now_s - self.started_s) * left / self.bytes_done

    def to_dict(self) -> dict[str, Any]:
        return {
            "is_active": self.phase != "idle",
            "current_phase": self.phase,
            "current_nodes": sorted(node for (node, _), trip in self._trips.items() if trip.now is not None),
            "files_done": self.files_done,
            "files_total": self.files_total,
            "bytes_done": self.bytes_done,
            "bytes_total": self.bytes_total,
            "percent": self.percent,
            "started_s": self.started_s,
            "last_update_s": self.last_update_s,
            "estimated_completion_s": self.estimated_completion_s,
            "error": self.error,
        }
