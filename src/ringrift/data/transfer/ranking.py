"""Which transport to try first for a node, from how each did there before.

A breaker per node and one per node and transport; after its pause, one call at a time finds out whether
things are better. Memory of this process: a restart begins without grudges.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ringrift.health.breakers import BreakerConfig, BreakerState, CircuitBreaker

PREFERRED = ("http", "rsync", "s3", "base64")
LAST_RESORT = frozenset({"base64"})
NODE_LIMIT = BreakerConfig(failures_max=3, cooldown_s=300.0)
TRANSPORT_LIMITS = {
    "http": BreakerConfig(failures_max=5, cooldown_s=30.0),
    "rsync": BreakerConfig(failures_max=2, cooldown_s=90.0),
    "base64": BreakerConfig(failures_max=2, cooldown_s=30.0),
}
OTHER_LIMIT = BreakerConfig(failures_max=3, cooldown_s=60.0)

FORGIVEN_AFTER_S = 600.0
SPEED_BYTES_MIN = 8 << 20  # smaller transfers measure the round trip, not the line
SPEED_SHARE_NEW = 0.3
TRACKS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Track:
    """How one transport, or a node as a whole, did lately."""

    breaker: CircuitBreaker
    failed_s: float = -math.inf
    bytes_per_s: float | None = None
    trial_until_s: float = -math.inf  # one call is finding out, at most until then

    def failures(self, now_s: float) -> int:
        return self.breaker.failures if now_s - self.failed_s < FORGIVEN_AFTER_S else 0

    def admits(self, now_s: float) -> bool:
        match self.breaker.state(now_s):
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                return now_s >= self.trial_until_s

    def wait_s(self, now_s: float) -> float:
        """How long until it is worth asking again."""
        if self.breaker.opened_s is None:
            return 0.0
        return max(0.0, self.breaker.opened_s + self.breaker.cooldown_s - now_s, self.trial_until_s - now_s)


class TransferHealth:
    """Notes outcomes and answers with an order. Times are monotonic and come in."""

    def __init__(self) -> None:
        self._tracks: OrderedDict[tuple[str, str], Track] = OrderedDict()

    def ranked(
        self, node: str, transports: Sequence[str], *, now_s: float, avoid: Collection[str] = ()
    ) -> list[str]:
        """Return the transports to try, best first; those whose breaker is open are left out."""
        open_to_us = [name for name in transports if self.track(node, name).admits(now_s)]
        tracks = {name: self.track(node, name) for name in open_to_us}
        measured = [track.bytes_per_s for track in tracks.values() if track.bytes_per_s]
        best = max(measured, default=1.0)

        def key(name: str) -> tuple[bool, bool, int, int, int]:
            # Twice as fast counts; less is noise. What was never measured is taken to be as good as the best.
            slowness = round(math.log2(best / (tracks[name].bytes_per_s or best)))
            place = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
            return name in avoid, name in LAST_RESORT, tracks[name].failures(now_s), slowness, place

        return sorted(open_to_us, key=key)

    def track(self, node: str, transport: str = "") -> Track:
        """Return what is known; the node as a whole without *transport*."""
        limit = TRANSPORT_LIMITS.get(transport, OTHER_LIMIT) if transport else NODE_LIMIT
        return self._tracks.get((node, transport)) or Track(CircuitBreaker(limit))

    def begins(self, node: str, transport: str = "", *, now_s: float, for_s: float) -> None:
        """Note a call; if it is a trial, nobody else tries until it ended, or *for_s* passed."""
        track = self.track(node, transport)
        if track.breaker.opened_s is not None:
            self._keep(node, transport, replace(track, trial_until_s=now_s + for_s))

    def succeeded(
        self, node: str, transport: str = "", *, bytes_moved: int = 0, seconds: float = 0.0
    ) -> None:
        track = self.track(node, transport)
        speed = track.bytes_per_s
        if bytes_moved >= SPEED_BYTES_MIN and seconds > 0:
            now = bytes_moved / seconds
            speed = now if speed is None else speed + SPEED_SHARE_NEW * (now - speed)
        self._keep(node, transport, Track(track.breaker.succeeded(), bytes_per_s=speed))

    def failed(self, node: str, transport: str = "", *, now_s: float) -> bool:
        """Count a failure; return whether the breaker opened by it."""
        track = self.track(node, transport)
        after = track.breaker.failed(now_s)
        self._keep(node, transport, Track(after, failed_s=now_s, bytes_per_s=track.bytes_per_s))
        return after.opened_s is not None and after.opened_s != track.breaker.opened_s

    def ended(self, node: str, transport: str = "") -> None:
        """Note that a call ended without an outcome: it was cancelled, or refused before it began."""
        track = self.track(node, transport)
        if track.trial_until_s > -math.inf:
            self._keep(node, transport, replace(track, trial_until_s=-math.inf))

    def forgive(self, node: str) -> None:
        """A node said that it is well again: forget what it did."""
        for key in [key for key in self._tracks if key[0] == node]:
            del self._tracks[key]

    def status(self, now_s: float) -> dict[str, dict[str, object]]:
        """Return what is known by "node" and "node/transport"."""
        return {
            f"{node}/{transport}".rstrip("/"): {
                "state": track.breaker.state(now_s).value,
                "failures": track.failures(now_s),
                "bytes_per_s": track.bytes_per_s,
                "wait_s": track.wait_s(now_s),
            }
            for (node, transport), track in self._tracks.items()
        }

    def _keep(self, node: str, transport: str, track: Track) -> None:
        self._tracks[node, transport] = track
        self._tracks.move_to_end((node, transport))
        while len(self._tracks) > TRACKS_MAX:
            self._tracks.popitem(last=False)
