"""Nodes that were said to be away. A copy on one of them does not count until it is heard of again."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.runtime import Runtime

AWAY_S = 6 * 3600.0  # then it is asked again: an unheard return must not block repairs for good


class AwayNodes:
    """Hears of nodes that go and come."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since: dict[str, float] = {}

    def hears(self) -> Mapping[str, Callback]:
        return {"HOST_OFFLINE": self.on_offline, "HOST_ONLINE": self.on_online}

    def on_offline(self, event: RouterEvent) -> None:
        self._since[str(event.payload["node_id"])] = self._runtime.monotonic_s()

    def on_online(self, event: RouterEvent) -> None:
        self._since.pop(str(event.payload["node_id"]), None)

    def now(self) -> frozenset[str]:
        oldest_s = self._runtime.monotonic_s() - AWAY_S
        return frozenset(name for name, since_s in self._since.items() if since_s > oldest_s)
