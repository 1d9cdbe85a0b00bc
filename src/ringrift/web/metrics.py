"""The latest snapshot for Prometheus and its like, in OpenMetrics form for whoever asks for that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ringrift.learning.plan.stages import LEVERS
from ringrift.learning.run_status import ConfigStatus, RunStatus, WorkerStatus
from ringrift.web.snapshot import ProbeSnapshot

# What the loop is doing, as metrics: one series per config, and the queue.


Number = Callable[[ConfigStatus], float | None]

GAUGES: tuple[tuple[str, str, Number], ...] = (
    ("ringrift_games", "Games that agree with the rules", lambda c: c.games),
    ("ringrift_games_unchecked", "Games that wait for their check", lambda c: c.games_unchecked),
    ("ringrift_games_per_second", "Games played a second", lambda c: c.games_per_s),
    ("ringrift_rows", "Rows of the games", lambda c: c.rows),
    ("ringrift_trained_rows", "Rows that the newest model was offered", lambda c: c.trained_rows),
    ("ringrift_rating", "Rating of the champion", lambda c: c.rating),
    ("ringrift_rating_low", "Lower end of its 95 % interval", lambda c: _end(c, 0)),
    ("ringrift_rating_high", "Upper end of its 95 % interval", lambda c: _end(c, 1)),
    ("ringrift_train_bucket", "Sample-steps that new rows have earned", lambda c: c.bucket),
    ("ringrift_selfplay_share", "Share of self-play", lambda c: c.share),
    ("ringrift_jobs_running", "Jobs under way", lambda c: len(c.running)),
    ("ringrift_stages_blocked", "Stages that wait after failures", lambda c: len(c.blocked)),
    ("ringrift_paused", "1 while somebody has paused it", lambda c: c.paused is not None),
)
COUNTERS: tuple[tuple[str, str, Number], ...] = (
    ("ringrift_games_refused", "Games that do not agree with the rules", lambda c: c.games_refused),
    ("ringrift_sample_steps", "Rows seen in training, repeats included", lambda c: c.sample_steps),
    ("ringrift_promotions", "Champions that were made", lambda c: c.promotions),
    ("ringrift_rejections", "Candidates that were refused", lambda c: c.rejections),
    ("ringrift_rollbacks", "Promotions that were taken back", lambda c: c.rollbacks),
    ("ringrift_cpu_seconds", "Processor time of all jobs", lambda c: c.cost.cpu_s),
    ("ringrift_gpu_seconds", "GPU time of all jobs", lambda c: c.cost.gpu_s),
    ("ringrift_money", "What the nodes cost, where each has a price", lambda c: c.cost.money),
)


WORKER_NUMBERS: tuple[tuple[str, str, Callable[[WorkerStatus], float]], ...] = (
    ("ringrift_worker_games", "Games that a worker brought", lambda w: w.games),
    ("ringrift_worker_games_refused", "Games of it that broke the rules", lambda w: w.refused),
    ("ringrift_worker_comparisons", "Times its games were searched again by another", lambda w: w.compared),
    ("ringrift_worker_faults", "Comparisons that found it wrong", lambda w: w.faults),
    ("ringrift_worker_disputes", "Comparisons that nobody could decide", lambda w: w.disputed),
)


def run_metrics(run: RunStatus) -> Iterator[Metric]:
    """A config has no sample of what it has no value for."""
    yield GaugeMetricFamily("ringrift_workers", "Jobs that may run at a time", value=run.workers)
    if run.starting is not None:
        about = "Share of the workers' time that jobs take to start"
        yield GaugeMetricFamily("ringrift_start_share", about, value=run.starting.share)
        about = "Median time of recent jobs to their first game or step"
        yield GaugeMetricFamily("ringrift_start_seconds", about, value=run.starting.median_s)
    for kind, rows in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, about, number in rows:
            family = kind(name, about, labels=["config"])
            for config, status in run.configs.items():
                value = number(status)
                if value is not None:
                    family.add_metric([config], value)
            yield family
    yield _stopped_stages(run)
    yield from _worker_metrics(run)
    queue = GaugeMetricFamily("ringrift_queue_items", "Items of work", labels=["kind", "state"])
    for kind_of_work, states in run.queue.items():
        for state, items in states.items():
            queue.add_metric([kind_of_work, state], items)
    yield queue


def _stopped_stages(run: RunStatus) -> Metric:
    """One series per config and daemon of a stage, also of those that plan: an alert needs the end, too."""
    about = "1 while the daemon is stopped, so that its stage of the loop is not planned"
    family = GaugeMetricFamily("ringrift_stage_stopped", about, labels=["config", "daemon"])
    for config, status in run.configs.items():
        for daemon in sorted(LEVERS):
            family.add_metric([config, daemon], daemon in status.stopped)
    return family


def _worker_metrics(run: RunStatus) -> Iterator[Metric]:
    for name, about, number in WORKER_NUMBERS:
        family = CounterMetricFamily(name, about, labels=["worker"])
        for worker in run.worker_statistics:
            family.add_metric([worker.name], number(worker))
        yield family
    aside = GaugeMetricFamily("ringrift_worker_set_aside", "Whether it gets no work", labels=["worker"])
    for worker in run.worker_statistics:
        aside.add_metric([worker.name], worker.set_aside is not None)
    yield aside


def _end(config: ConfigStatus, place: int) -> float | None:
    return None if config.rating_interval is None else config.rating_interval[place]


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
