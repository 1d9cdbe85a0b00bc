"""Where the end of a delivery is written down: handled, failed and kept, or given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ringrift.events.failures import Failure, FailureKind
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Delivery, Subscription


class FailureDesk(Protocol):
    """Takes failures in; *kept* is called with each that will not be lost."""

    async def report(self, failure: Failure, kept: Callable[[Failure], None]) -> None: ...

    def report_now(self, failure: Failure) -> bool:
        """As `report` without waiting; whether the failure is kept."""
        ...


class Outcomes:
    """Hands failures to *desk*; *handled* hears which event of the log a subscription is through with."""

    def __init__(self, desk: FailureDesk, *, handled: Callable[[RouterEvent, Subscription], None]) -> None:
        self._desk, self.handled = desk, handled

    async def report_all(self, failures: Sequence[Failure]) -> None:
        for failure in failures:
            await self._desk.report(failure, self._kept)

    def record_now(self, failures: Sequence[Failure]) -> None:
        """As `report_all`, for a task that is being cancelled and cannot wait any more."""
        for failure in failures:
            if self._desk.report_now(failure):
                self._kept(failure)

    def record_cancelled(self, delivery: Delivery) -> None:
        """The router or its loop is ending. An event of the log comes again; any other would be lost."""
        if not delivery.event._seq:
            text = "cancelled with the router"
            failure = Failure(delivery.event, delivery.subscription, FailureKind.CANCELLED, text)
            self.record_now([failure])

    def _kept(self, failure: Failure) -> None:
        """The failure is kept: from now on its retry, and not the log, brings the event again."""
        if failure.event._seq:
            self.handled(failure.event, failure.subscription)
