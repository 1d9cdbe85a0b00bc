"""The one router: publish, subscribe, order, isolation, and (through the log) other processes.

The router belongs to one event loop at a time, the one it is first used on; every handler runs there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import structlog

from ringrift.engine.arguments import check_event_type, check_name, check_seconds
from ringrift.engine.blocking import run_blocking
from ringrift.engine.limits import LEASE_S_MIN, WAIT_S_MAX
from ringrift.errors import CausalChainTooLong, RingRiftError, Unavailable, described
from ringrift.events.catalog.audit import LastSeen
from ringrift.events.catalog.names import delivered_as, resolve
from ringrift.events.cross_process import CrossProcess
from ringrift.events.delivery import Dispatcher
from ringrift.events.event import Delivery, EventSource, RouterEvent, current_delivery
from ringrift.events.positions import LogConnection
from ringrift.events.router_loop import STOP_S, Publish, RouterLoop
from ringrift.events.router_reports import (
    REPORTS_OF_FAILURE,
    DeadLetterSink,
    Failure,
    Outcomes,
    RouterCounters,
    RouterReports,
)
from ringrift.events.subscriptions import (
    Callback,
    EventRoutes,
    Route,
    SeenEvents,
    Subscription,
    SubscriptionHandle,
    SubscriptionTable,
    callback_name,
    check_parts,
)
from ringrift.events.tracing import current_trace_id
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, read_settings
from ringrift.status import HealthCheckResult

# What a router stands on, handed in, so that tests and embedding programs decide it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a router stands on. The defaults keep everything inside this process."""

    runtime: Runtime = field(default_factory=system_runtime)
    settings: Settings = field(default_factory=lambda: process_scope().get(Settings, read_settings))
    log_connection: LogConnection | None = None
    dead_letters: DeadLetterSink | None = None


# Which event caused which.


# Deeper than any chain of the catalog; handlers that publish to each other without end stop here.
CAUSAL_DEPTH_MAX = 32


def delivery_of(event: RouterEvent) -> Delivery:
    """Begin to deliver *event*; published inside a handler, it is a child of the event that is handled."""
    parent = current_delivery.get()
    if parent is None:
        return Delivery(event)
    cause = parent.event
    if cause is not event:  # a handler may hand its own event on to another router
        # Whoever forwards an event may have set them already; then they stay.
        event.parent_event_id = event.parent_event_id or cause.event_id
        event.correlation_id = event.correlation_id or cause.correlation_id or cause.event_id
    if not parent.running:
        return Delivery(event)  # the handler has ended; a task it left behind starts a chain of its own
    depth = parent.depth + 1
    # A report passes at any depth: it tells of the chain that failed. It cannot loop, because the
    # failure of a report's own handler is not announced.
    if depth > CAUSAL_DEPTH_MAX and event.event_type not in REPORTS_OF_FAILURE:
        raise CausalChainTooLong(event.event_type, depth=depth)
    return Delivery(event, first=parent.first or parent, depth=depth)


# Which buses a publisher wants to reach, and events that come in through one of them.


class BusFlags(NamedTuple):
    """Which subscribers a publisher wants to reach besides the router's own."""

    data_bus: bool
    stage_bus: bool
    cross_process: bool

    def allow(self, targets: Sequence[Subscription]) -> tuple[Subscription, ...]:
        # There is no flag for the router's own subscriptions: they get every event.
        barred = {EventSource.DATA_BUS: not self.data_bus, EventSource.STAGE_BUS: not self.stage_bus}
        return tuple(item for item in targets if not barred.get(item.bus))


ALL_BUSES = BusFlags(True, True, True)


def as_router_event(found: Any, source: str = "") -> RouterEvent:
    """Take a RouterEvent as it is, and anything with a type and a payload as an event of the data bus."""
    if isinstance(found, RouterEvent):
        return found
    event = RouterEvent(
        found.event_type,
        dict(getattr(found, "payload", None) or {}),
        source=source or getattr(found, "source", ""),
        origin=EventSource.DATA_BUS,
        data_event=found,
    )
    event.timestamp = getattr(found, "timestamp", event.timestamp)
    event.success = bool(event.payload.get("success", True))
    return event


log = structlog.get_logger()

HISTORY_MAX = 1000
# Beyond this an event becomes a dead letter: memory stays bounded, and the letter is retried later.
MAILBOX_MAX = 10_000
_ROUTER = EventSource.ROUTER
_PATIENCE_S = 24 * 3600.0  # each handler has its own limit; this bounds a chain of them


class UnifiedEventRouter:
    """Delivers every event once to each of its subscriptions, whichever bus name was used."""

    def __init__(
        self,
        enable_cross_process_polling: bool = True,  # noqa: FBT001, FBT002 - in the published order
        poll_interval: float = 1.0,
        max_seen_events: int = 10_000,
        dedup_ttl_seconds: float = 30.0,
        *,
        content_dedup: bool = False,
        surroundings: Surroundings | None = None,
    ) -> None:
        around = surroundings or Surroundings()
        self._runtime = around.runtime
        self._home = RouterLoop(self._taken_over, around.runtime)
        self._routes = EventRoutes(strict=around.settings.event_validation_strict)
        self._seen = SeenEvents(events_max=max_seen_events, ttl_s=dedup_ttl_seconds, by_content=content_dedup)
        self._table = SubscriptionTable()
        self._counters = RouterCounters()
        self._event_history: deque[RouterEvent] = deque(maxlen=HISTORY_MAX)
        timeout_s = around.settings.event_handler_timeout
        self._outcomes = Outcomes(
            self._counters,
            around.dead_letters,
            handled=self._note_handled,
            publish=self.publish,
            timeout_s=timeout_s,
        )
        self._dispatcher = Dispatcher(
            timeout_s=timeout_s,
            mailbox_max=MAILBOX_MAX,
            outcomes=self._outcomes,
            is_ending=self._home.is_ending,
        )
        self._crossing: CrossProcess | None = None
        if enable_cross_process_polling and around.log_connection is not None:
            self._crossing = CrossProcess(
                around.log_connection,
                table=self._table,
                dispatcher=self._dispatcher,
                is_ending=self._home.is_ending,
                arrive=self._arrive,
                runtime=around.runtime,
                settings=around.settings,
                retry_s=poll_interval,
            )
            self._crossing.keep_last_seen(self.last_seen)
            self._crossing.when_log_closes(self._let_go_of_log)
        # Only now: the connection needs the dispatcher, and the dispatcher needs the reports of failures.
        self._outcomes.attach(self._crossing)
        self._reports = RouterReports(
            table=self._table,
            routes=self._routes,
            seen=self._seen,
            history=self._event_history,
            counters=self._counters,
            crossing=self._crossing,
        )

    # --- publishing -----------------------------------------------------------------------------------

    async def publish(
        self,
        event_type: Any,
        payload: Mapping[str, Any] | None = None,
        source: str = "",
        route_to_data_bus: bool = True,  # noqa: FBT001, FBT002
        route_to_stage_bus: bool = True,  # noqa: FBT001, FBT002
        route_to_cross_process: bool = True,  # noqa: FBT001, FBT002
    ) -> RouterEvent:
        """Deliver an event; return when it, and all that its handlers published in turn, is handled.

        *event_type* is a name in any spelling, an enum member, or a ready event. The flags can only
        switch off: an event that its catalog entry keeps in the process stays there.
        """
        flags = ALL_BUSES  # the usual case is one object, so that it is recognized by identity
        if not (route_to_data_bus and route_to_stage_bus and route_to_cross_process):
            flags = BusFlags(route_to_data_bus, route_to_stage_bus, route_to_cross_process)
        # The types first: asking whether something is a mapping costs more than the rest of this.
        if type(payload) is not dict or type(source) is not str:
            check_parts(payload, source)
        if asyncio.get_running_loop() is not self._home.direct:
            return await self._publish_at_home(event_type, payload, source, flags)
        if payload is None and hasattr(event_type, "event_type"):
            return await self.publish_event(as_router_event(event_type, source), flags)
        runtime = self._runtime
        route, content = self._routes.find(event_type, {} if payload is None else dict(payload))
        event_id = runtime.new_id()
        event = RouterEvent(
            route.name,
            content,
            runtime.now_s(),
            source,
            _ROUTER,
            event_id,
            current_trace_id() or event_id.replace("-", ""),
        )
        if "success" in content:
            event.success = bool(content["success"])
        # A handler may hand the event on to `publish_event`; noted here, it is not delivered a second time.
        self._seen.note(event_id, runtime.monotonic_s())
        if route.crosses:
            await self._deliver(event, route, flags)
        else:  # most events are done with at once: no coroutine in between, and few calls
            delivery = Delivery(event) if current_delivery.get() is None else delivery_of(event)
            targets = self._table.targets(route.name)
            rest = self._dispatch(delivery, route, targets if flags is ALL_BUSES else flags.allow(targets))
            if rest is not None:
                await rest
        return event

    async def _publish_at_home(
        self, event_type: Any, payload: Mapping[str, Any] | None, source: str, flags: BusFlags
    ) -> RouterEvent:
        # Not in `publish`: what a function within it refers to costs every call of it.
        content = None if payload is None else dict(payload)
        return await self._home.in_turn(lambda: self.publish(event_type, content, source, *flags))

    async def publish_event(self, event: RouterEvent, flags: BusFlags | None = None) -> RouterEvent:
        """Deliver a ready event, unless one with its id was delivered already."""
        if asyncio.get_running_loop() is not self._home.direct:
            return await self._home.in_turn(lambda: self.publish_event(event, flags))
        return await self._publish_checked(event, self._checked(event), flags or ALL_BUSES)

    def _checked(self, event: RouterEvent) -> Route:
        """Give a ready event its canonical name and payload; raises for one that cannot be published."""
        check_parts(event.payload, event.source)
        # A copy: what the publisher changes in its own dictionary later must not reach a handler.
        route, event.payload = self._routes.find(event.event_type, dict(event.payload))
        event.event_type = route.name
        event.trace_id = event.trace_id or current_trace_id() or event.event_id.replace("-", "")
        return route

    async def _publish_checked(self, event: RouterEvent, route: Route, flags: BusFlags) -> RouterEvent:
        # Noted before the delivery, so that a second publish meanwhile does not deliver it as well.
        if self._seen.is_duplicate(event, self._runtime.monotonic_s()):
            return event
        try:
            await self._deliver(event, route, flags)
        except RingRiftError:
            self._seen.forget(event)  # it was not delivered, and may be published again
            raise
        if event.origin is not _ROUTER:
            self._counters.by_origin[event.origin] += 1
        return event

    def publish_sync(
        self, event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
    ) -> RouterEvent:
        """Publish from code that is not async, and return the event.

        Without a running loop in this thread all is handled when it returns. Inside one nobody can wait: the
        event is checked and on its way, `delivery` gives the task that delivers it, and the router logs the
        error of one that fails. `await publish(...)` waits. What the same thread publishes later comes later,
        but for an event that stays in the process: it does not wait until one that crosses is stored.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._publish_and_wait(lambda: self.publish(event_type, payload, source))
        check_parts(payload, source)
        if payload is None and hasattr(event_type, "event_type"):
            event = as_router_event(event_type, source)
        else:
            content, runtime = dict(payload or {}), self._runtime
            event = RouterEvent(event_type, content, runtime.now_s(), source, _ROUTER, runtime.new_id())
            event.success = bool(content.get("success", True))
        # Checked here and not in the task: a caller who cannot wait is told of a wrong name all the same.
        route = self._checked(event)
        checked = partial(self._publish_checked, event, route, ALL_BUSES)
        self._home.publish_soon(lambda: self._home.at_home(checked), event)
        return event

    def _publish_and_wait(self, publish: Publish) -> RouterEvent:
        """For a thread without a loop. `Unavailable` if the loop of the handlers ends half way."""
        # Lodging on the background loop, it is reached by `borrowed` alone, which counts its users.
        if not self._home.borrowers and (handed := self._home.from_thread(publish)) is not None:
            return handed.result()
        # A program without any loop borrows the background loop of the process for as long as it takes.
        return run_blocking(self.borrowed(publish), timeout_s=_PATIENCE_S)

    def delivery(self, event: RouterEvent) -> asyncio.Task[RouterEvent] | None:
        """The task that delivers what `publish_sync` published inside a loop; None when it is over."""
        return self._home.task_of(event)

    emit = publish
    emit_sync = publish_sync

    async def _deliver(self, event: RouterEvent, route: Route, flags: BusFlags) -> None:
        delivery = delivery_of(event)
        # The same targets for append and dispatch: the cursors of exactly these expect the event.
        targets = self._table.targets(event.event_type)
        targets = targets if flags is ALL_BUSES else flags.allow(targets)
        crossing = self._crossing if route.crosses and flags.cross_process else None
        # Stored before any handler runs: after a crash the log brings it to those who had not finished.
        if crossing is not None and not await crossing.append(delivery, targets):
            self._seen.duplicates += 1
            return
        rest = self._dispatch(delivery, route, targets)
        if rest is not None:
            await rest

    def _dispatch(
        self, delivery: Delivery, route: Route, targets: Sequence[Subscription]
    ) -> Awaitable[None] | None:
        event = delivery.event
        self._event_history.append(event)
        route.count += 1
        route.sent_s, route.reached = event.timestamp, targets
        return self._dispatcher.begin(delivery, targets)

    def _arrive(self, event: RouterEvent) -> None:
        """Count an event of another process (or of an earlier run of this one)."""
        self._event_history.append(event)
        route = self._routes.named(event.event_type, resolve(event.event_type)[1])
        route.count += 1
        # A subscription to everything does not count: it would hide that nobody asked for this event.
        if self._table.asking_for((route.name,)):
            route.received_s = event.timestamp
        self._counters.by_origin[EventSource.CROSS_PROCESS] += 1

    def last_seen(self) -> dict[str, LastSeen]:
        """When each event of the catalog was last sent here, and last received by one who asked for it."""
        found = {}
        for route in self._routes.of_catalog():
            # Whoever hears everything was not asked for it.
            here = route.sent_s if any(each.event_types for each in route.reached) else None
            found[route.name] = (
                LastSeen(route.sent_s).merged(LastSeen(None, route.received_s)).merged(LastSeen(None, here))
            )
        return found

    # --- subscribing ----------------------------------------------------------------------------------

    def subscribe(
        self,
        event_type: Any,
        callback: Callback,
        subscriber_name: str | None = None,
        persist: bool = False,  # noqa: FBT001, FBT002
        *,
        timeout: float | None = None,
        bus: EventSource = EventSource.ROUTER,
    ) -> SubscriptionHandle:
        """Call *callback* with every event of a type (None: of every type); return the way to end it.

        *subscriber_name* names the subscription across restarts; without it, where the callback is
        written does. A plain function runs on the event loop and must be quick. The same callback may
        be subscribed twice and is then called twice. Every named subscription continues after a
        restart where it was; *persist* adds nothing and is accepted for callers that ask for it.
        """
        types = None if event_type is None else delivered_as(event_type)
        for each in types or ():
            check_event_type(each)
        if timeout is not None:
            check_seconds("timeout", timeout, low=LEASE_S_MIN, high=WAIT_S_MAX)
        name = self._table.free_name(subscriber_name or callback_name(callback))
        # Positions and dead letters are stored under the name, so it has to fit into the store.
        check_name("subscriber_name", name)
        # A subscription to local events alone needs no cursor, and no reader is started for it.
        crosses = types is None or any(self._routes.named(t, resolve(t)[1]).crosses for t in types)
        subscription = Subscription(name, types, callback, timeout, bus, persist, crosses)
        self._table.add(subscription)
        if self._crossing is not None and crosses:
            self._home.tell(self._crossing.subscribed)
        return SubscriptionHandle(subscription, self._end_subscription)

    register_handler = subscribe

    def unsubscribe(self, event_type: Any, callback: Callback) -> bool:
        """End the oldest subscription of *callback* to this type; False if there is none."""
        types = None if event_type is None else delivered_as(event_type)
        found = self._table.find(types, callback)
        return found is not None and self._end_subscription(found)

    def unsubscribe_all(self, event_type: Any = None) -> int:
        """End every subscription to a type (None: all there are, global ones too); return how many."""
        ended = list(self._table) if event_type is None else self.subscriptions_to(event_type)
        return sum(self._end_subscription(item) for item in ended)

    def has_subscribers(self, event_type: Any) -> bool:
        """Whether somebody asked for this very type; subscribers to everything do not count."""
        return bool(self.subscriptions_to(event_type))

    def list_subscribers(self, event_type: Any = None) -> list[dict[str, Any]]:
        """Describe the subscriptions (to one type), global ones first."""
        return self._table.describe(None if event_type is None else delivered_as(event_type))

    def find_subscription(self, name: str) -> Subscription | None:
        return self._table.named(name)

    def _end_subscription(self, subscription: Subscription) -> bool:
        ended, crossing = self._table.remove(subscription), self._crossing
        if ended and crossing is not None:
            self._home.tell_if_running(lambda: crossing.unsubscribed(subscription))
        return ended

    def subscriptions_to(self, event_type: Any) -> list[Subscription]:
        """Return those who asked for this very type."""
        return self._table.asking_for(delivered_as(event_type))

    # --- failures -------------------------------------------------------------------------------------

    async def identify(self) -> str:
        """Return the name under which this process keeps positions and dead letters; "" without a log."""
        return "" if self._crossing is None else await self._home.at_home(self._crossing.identify)

    def send_dead_letters_to(self, sink: DeadLetterSink) -> None:
        self._outcomes.dead_letters = sink

    async def redeliver(self, event: RouterEvent, subscription: Subscription) -> Failure | None:
        """Deliver an event again to one subscription only; return how it failed, if it did."""
        return await self._home.at_home(lambda: self._dispatcher.redeliver(event, subscription))

    def _note_handled(self, delivery: Delivery, subscription: Subscription) -> None:
        if self._crossing is not None:
            self._crossing.handled(delivery, subscription)

    # --- life -----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return True

    async def start(self) -> None:
        """Read the log of other processes from now on. A router that is only used locally needs none."""
        if self._crossing is None:
            self._home.bind()
        else:
            await self._home.at_home(self._crossing.start)

    async def stop(self) -> None:
        """Finish the deliveries under way, record positions and end the router's tasks."""
        # Another loop has the router by now; the deliveries there are not this caller's to end.
        if self._home.current is not asyncio.get_running_loop():
            return
        if self._crossing is not None:
            # In this order: nothing more comes in, what is under way ends, and then the positions are final.
            await self._crossing.stop_reading()
        await self._home.finish_tasks()
        await self._dispatcher.drain(self._table, timeout_s=STOP_S)
        if self._crossing is not None:
            await self._crossing.close()
        self._home.leave()

    async def rest(self) -> None:
        """As `stop`; and while anybody goes on to use the router, only `start` has it read the log again."""
        await self.stop()
        if self._crossing is not None:
            self._crossing.rests = True

    async def _let_go_of_log(self) -> None:
        """Somebody closes the engine: record what was handled there. The next use opens it again."""
        if self._crossing is None:
            return
        if self._home.running is None:
            # It was left; a failure reported late sets the recorder going again. The notes have the rest.
            self._crossing.let_go()
            return
        try:
            async with asyncio.timeout(STOP_S):
                await self._home.at_home(self._crossing.leave)
        except (TimeoutError, Unavailable) as error:
            log.warning("events.engine_closed_early", error=described(error))

    def let_go(self) -> None:
        """Drop everything at once, from any thread, without waiting for deliveries under way."""
        self.reset()
        if self._crossing is not None:
            self._crossing.let_go()

    def reset(self) -> None:
        """Forget subscriptions, history and counts."""
        self.unsubscribe_all()
        self._event_history.clear()
        self._seen.clear()
        self._routes.clear()
        self._counters.clear()

    async def borrowed(self, publish: Publish) -> RouterEvent:
        """Publish on a loop that is not ours, and give it back afterwards."""
        self._home.borrowers += 1
        try:
            return await publish()
        finally:
            await self.vacate()

    async def occupy(self) -> None:
        """Settle on the running loop, which is not ours, until as many `vacate` calls."""
        self._home.borrowers += 1
        await self.start()

    async def vacate(self) -> None:
        await self._home.finish_tasks()
        self._home.borrowers -= 1
        if self._home.borrowers == 0 and self._crossing is not None:
            await self._crossing.pause()
        # With deliveries left it stays bound to the loop that still runs them.
        if self._home.borrowers == 0 and not any(item.running or item.mailbox for item in self._table):
            self._home.leave()

    @property
    def bound_loop(self) -> asyncio.AbstractEventLoop | None:
        """The running loop that handlers run on, if there is one."""
        return self._home.running

    def _taken_over(self) -> None:
        # Before `rebind`, which reads from the log again what was under way here.
        lost = self._dispatcher.abandon(self._table)
        if lost:
            log.warning("events.loop_ended_with_deliveries", deliveries=lost)
        if self._crossing is not None:
            self._crossing.rebind()

    # --- reports --------------------------------------------------------------------------------------

    def get_stats(self) -> dict[str, Any]:
        return self._reports.stats()

    def get_history(
        self,
        event_type: Any = None,
        origin: EventSource | None = None,
        since: float | None = None,
        limit: int = 100,
    ) -> list[RouterEvent]:
        """Return matching events of the last 1000, newest last."""
        names = None if event_type is None else delivered_as(event_type)
        return self._reports.history(names, origin, since, limit)

    def get_orphaned_events(self) -> dict[str, Any]:
        return self._reports.orphans()

    def validate_event_flow(self) -> dict[str, Any]:
        return self._reports.flow()

    def validate_event_wiring(
        self,
        raise_on_error: bool = False,  # noqa: FBT001, FBT002
        log_warnings: bool = True,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        return self._reports.wiring(raise_on_error=raise_on_error, log_warnings=log_warnings)

    def health_check(self) -> HealthCheckResult:
        return self._reports.health()

    def get_status(self) -> dict[str, Any]:
        return self._reports.status()
