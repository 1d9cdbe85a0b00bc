"""The latest picture for Prometheus and its like, in OpenMetrics form for whoever asks for that."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ringrift.web.run_metrics import run_metrics
from ringrift.web.snapshot import ProbeSnapshot

_OPENMETRICS = re.compile(r"application/openmetrics-text(?:\s*;\s*version=(0\.0\.1|1\.0\.0))?\s*(?:[;,]|$)")


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: ProbeSnapshot | None, *, now_s: float) -> None:
        self._snapshot, self._now_s = snapshot, now_s

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield GaugeMetricFamily(
            "ringrift_up", "1 while the control process reports", value=0.0 if snapshot is None else 1.0
        )
        if snapshot is None:
            return
        yield GaugeMetricFamily(
            "ringrift_report_age_seconds",
            "Age of the control loop's latest report",
            value=self._now_s - snapshot.taken_s,
        )
        daemons = GaugeMetricFamily("daemon_count", "Daemons by state", labels=["state"])
        for state, count in sorted(snapshot.daemon_counts.items()):
            daemons.add_metric([state], count)
        yield daemons
        yield GaugeMetricFamily(
            "daemon_health_score", "Share of daemons that are well", value=snapshot.health_score
        )
        yield GaugeMetricFamily(
            "daemon_uptime_seconds", "Uptime of the control process", value=snapshot.uptime_s
        )
        events = CounterMetricFamily("ringrift_events_routed", "Events by type", labels=["event"])
        for event, count in sorted(snapshot.events_routed.items()):
            events.add_metric([event], count)
        yield events
        if snapshot.run is not None:
            yield from run_metrics(snapshot.run)


def render(snapshot: ProbeSnapshot | None, *, now_s: float, accept: str) -> tuple[bytes, str]:
    """Return the exposition of *snapshot* and its content type, by the reader's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, now_s=now_s))
    # Only what exists is handed on: the library fails on odd versions, and a header is anybody's text.
    asked = _OPENMETRICS.search(accept)
    form = "" if asked is None else f"application/openmetrics-text; version={asked[1] or '1.0.0'}"
    encode, content_type = choose_encoder(form)
    return encode(registry), content_type
