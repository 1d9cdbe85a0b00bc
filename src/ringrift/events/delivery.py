"""Driving somebody else's coroutine by hand: to where it really waits, and to an end that it cannot refuse.

Most handlers never wait. Those cost no timer and no task; the others are awaited from where they stopped, in
the same task. A coroutine that is cancelled gets a while to clean up; one that has not ended by then, because
it swallows its cancellation or waits for something that does, is closed and left: it holds nobody up.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextvars import Token, copy_context
from types import CoroutineType
from types import coroutine as coroutine_of_generator
from typing import Any

from ringrift.events.event import Delivery, RouterEvent, current_delivery
from ringrift.events.router_reports import Failure, FailureKind, Outcomes, failure_of, overflow_of
from ringrift.events.subscriptions import MailboxPlace, Subscription
from ringrift.process import process_scope
from ringrift.task_owner import TaskOwner

GRACE_S = 5.0  # what a cancelled coroutine has to clean up
# Each is kept alive on purpose, so there is a bound; each was reported as stuck when it was left.
_UNCLOSED_MAX = 100


class IgnoredCancellation(TimeoutError):
    """It did not end when it was cancelled, and was left."""


# A coroutine whose first step was driven by hand, and what it waits for.
Waiting = tuple[Coroutine[Any, Any, Any], Any]


def first_step(result: Any) -> Waiting | None:
    """Drive an awaitable as far as it goes without waiting; None if it is finished."""
    coroutine: Coroutine[Any, Any, Any]
    # The exact type first: nearly every handler is an `async def`, and `isawaitable` costs more.
    if type(result) is CoroutineType:
        coroutine = result
    elif inspect.isawaitable(result):
        coroutine = _awaited(result)
    else:
        return None  # a plain callback that returned something
    try:
        return coroutine, coroutine.send(None)
    except StopIteration:
        return None


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def await_ending(awaitable: Awaitable[Any]) -> Any:
    """Await somebody else's code; when the caller is cancelled it is left `GRACE_S` later at the latest."""
    coroutine = awaitable if isinstance(awaitable, CoroutineType) else _awaited(awaitable)
    try:
        pending = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    try:
        return await finish((coroutine, pending))
    except IgnoredCancellation as error:
        raise asyncio.CancelledError from error


async def finish(
    waiting: Waiting,
    error: BaseException | None = None,
    cancels: int | None = None,
    *,
    grace_s: float = GRACE_S,
) -> Any:
    """Go on with a coroutine until it returns; *error* is what it hears first. Raises what it raises.

    Cancelling the caller cancels what the coroutine waits for, as awaiting it would; `IgnoredCancellation`
    if it has not ended *grace_s* later. *cancels* is how often the caller was cancelled before all this.
    """
    coroutine, pending = waiting
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "handlers run in tasks"
    cancels = task.cancelling() if cancels is None else cancels
    leave_s = loop.time() + grace_s if task.cancelling() > cancels else None  # when it is left
    try:
        while True:
            if error is None:
                error, leave_s = await _wait(pending, loop, leave_s, grace_s)
            # Asked at every step: one that keeps waiting for something short would otherwise never be left.
            if leave_s is not None and loop.time() >= leave_s:
                raise IgnoredCancellation(f"it ignored its cancellation for {grace_s:g} s")
            try:
                pending = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            error = None
            if task.cancelling() <= cancels:
                leave_s = None  # a time limit of its own had cancelled it
    finally:
        # One that is dropped unclosed would run its clean-up whenever it is collected.
        _close(coroutine)


async def _wait(
    pending: Any, loop: asyncio.AbstractEventLoop, leave_s: float | None, grace_s: float
) -> tuple[BaseException | None, float | None]:
    """Wait for what may refuse to be cancelled; return what the coroutine hears then, and when it is left."""
    error: BaseException | None = _unfit(pending, loop)
    try:
        if error is None:
            await _until_done(pending, loop, leave_s)
    except asyncio.CancelledError as cancelled:
        leave_s = leave_s or loop.time() + grace_s
        error = cancelled
        if pending is not None and pending.cancel():
            # Like a task: it hears of the cancellation from what it waits for, if that lets it.
            await _until_done(pending, loop, leave_s, once_more=True)
            error = cancelled if pending.cancelled() else None
    return error, leave_s


def _unfit(pending: Any, loop: asyncio.AbstractEventLoop) -> BaseException | None:
    """What a task says to a coroutine that waits for something else than a future of its loop."""
    if pending is None or (asyncio.isfuture(pending) and pending.get_loop() is loop):
        return None
    return RuntimeError(
        f"a handler can wait only for what its event loop knows, not for {type(pending).__name__}"
    )


@coroutine_of_generator
def _one_turn() -> Generator[None, None, None]:
    """Let the event loop turn once, as a coroutine asks for that yields nothing."""
    yield


async def _until_done(
    pending: asyncio.Future[Any] | None,
    loop: asyncio.AbstractEventLoop,
    leave_s: float | None,
    *,
    once_more: bool = False,
) -> None:
    """Return when *pending* is done, or at *leave_s*.

    Waits for a future of its own: a cancellation then wakes this task, and not only what it waits for.
    """
    if pending is None:
        await _one_turn()
        return
    # A task clears this mark when it takes what a coroutine yields; here this function is in its place.
    pending._asyncio_future_blocking = False
    if pending.done():
        return
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    pending.add_done_callback(wake)
    timer = None if leave_s is None else loop.call_at(leave_s, wake)
    try:
        await woken
    except asyncio.CancelledError:
        # The grace time has begun; a further cancellation does not shorten it.
        if not once_more:
            raise
    finally:
        pending.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()


class _Unclosed:
    """Coroutines that refuse to end at all; kept, because collecting them makes them refuse again."""

    def __init__(self) -> None:
        self.coroutines: deque[Coroutine[Any, Any, Any]] = deque(maxlen=_UNCLOSED_MAX)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except RuntimeError:
        process_scope().get(_Unclosed, _Unclosed).coroutines.append(coroutine)


# The tasks that run deliveries which no publisher waits for.


_OWNER = "deliveries of events"


class DeliveryTasks:
    """Owns them until they end; *never_began* hears of one that was cancelled before its first step."""

    def __init__(self, never_began: Callable[[MailboxPlace], None]) -> None:
        self._owner = TaskOwner(_OWNER)
        self._tasks: dict[asyncio.Task[None], MailboxPlace | None] = {}  # in the order of their start
        self._never_began = never_began

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(tuple(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], place: MailboxPlace | None = None) -> None:
        context = None if place is None else place.context
        # In the publisher's context: the trace goes on as if the publisher ran the handler itself.
        task = self._owner.create_task(work, context=context)
        self._tasks[task] = place
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        place = self._tasks.pop(task, None)
        # Cancelled before its first step, it never runs the `finally` that ends what it had to run.
        if task.cancelled() and place is not None and not place.begun:
            self._never_began(place)

    async def wait(self, *, timeout_s: float) -> None:
        """Wait for those there are and those they start."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self._tasks and (left_s := deadline_s - loop.time()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left_s)

    async def cancel(self) -> None:
        """End those there are now."""
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)  # unlike `gather`, lets the loop reap those that had ended already

    def forget(self) -> list[MailboxPlace]:
        """Let go of tasks whose loop is gone; return what none of them had begun."""
        unbegun = [item for item in self._tasks.values() if item is not None and not item.begun]
        self._owner, self._tasks = TaskOwner(_OWNER), {}
        return unbegun


class TimeLimits:
    """Cancels handlers whose time is over, with one timer for all: one each costs more than a short wait."""

    def __init__(self) -> None:
        self._waiting: dict[Subscription, asyncio.Task[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_s = math.inf  # when the timer looks

    def begin(self, subscription: Subscription, limit_s: float, task: asyncio.Task[Any]) -> None:
        """Limit what *subscription* does in *task*, the running one, from now on."""
        loop = task.get_loop()
        subscription.expires_s = expires_s = loop.time() + limit_s
        self._waiting[subscription] = task
        if expires_s < self._looks_s:
            self._look_at(expires_s, loop)

    def end(self, subscription: Subscription) -> bool:
        """Whether it is over by itself; False if its time was over before."""
        # The timer stays: the next handler that waits would only set it again.
        return self._waiting.pop(subscription, None) is not None

    def clear(self) -> None:
        """The loop is another one, or nothing is left that would have to end."""
        self._waiting.clear()
        self._looks_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, looks_s: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_s, self._timer = looks_s, loop.call_at(looks_s, self._look)

    def _look(self) -> None:
        # By the time it was set for: the loop may call it a moment early, and would find nothing due.
        loop, now_s = asyncio.get_running_loop(), self._looks_s
        for subscription in [item for item in self._waiting if item.expires_s <= now_s]:
            self._waiting.pop(subscription).cancel()
        self._timer, self._looks_s = None, math.inf
        if self._waiting:
            self._look_at(min(item.expires_s for item in self._waiting), loop)


# Runs handlers: in order, one event at a time per subscription, each isolated and limited in time.
#
# A handler runs in the task of its publisher. One that finishes without waiting costs no task and no timer;
# one that waits goes on in the same task under its time limit. A publisher waits its turn at a busy
# subscription. An event published *inside* a handler is different: it never waits for a busy subscription
# (which may be the publishing handler itself) but is left in its mailbox, and the outermost publisher waits
# for it at the end. So no chain of handlers can deadlock.
#
# On a loop that is ending nothing new is started: what still waits becomes a dead letter, or comes again
# out of the log.


class Dispatcher:
    """Delivers events to subscriptions; *is_ending* says whether the loop begins nothing more."""

    def __init__(
        self,
        *,
        timeout_s: float,
        mailbox_max: int,
        outcomes: Outcomes,
        is_ending: Callable[[], bool],
        grace_s: float = GRACE_S,
    ) -> None:
        self.timeout_s, self._mailbox_max, self._grace_s = timeout_s, mailbox_max, grace_s
        self._outcomes, self._handled, self._is_ending = outcomes, outcomes.handled, is_ending
        self._tasks, self._limits = DeliveryTasks(self._never_began), TimeLimits()

    # --- a publish ------------------------------------------------------------------------------------

    # The hot loop of every publish: here a call costs more than a branch.
    def begin(  # noqa: C901, PLR0912
        self, delivery: Delivery, targets: Sequence[Subscription]
    ) -> Awaitable[None] | None:
        """Run handlers until one has to wait; return the rest of the work, or None if all is done."""
        token = current_delivery.set(delivery)
        event, log_seq = delivery.event, delivery.log_seq
        delivery.running += 1
        failures: list[Failure] | None = None
        position = 0
        for subscription in targets:
            if subscription.running or subscription.mailbox:
                # Others are before us there. `_proceed` reserves places first, so that the order stays.
                return self._proceed(delivery, targets, position, failures, token)
            position += 1
            if not subscription.active:
                continue
            subscription.running = True
            try:
                result = subscription.callback(event)
                if type(result) is CoroutineType:
                    try:
                        waiting: Waiting | None = (result, result.send(None))
                    except StopIteration:
                        waiting = None
                else:
                    waiting = None if result is None else first_step(result)
                if waiting is not None:
                    return self._proceed(delivery, targets, position, failures, token, waiting)
            except Exception as error:  # noqa: BLE001 - a handler's failure stays with that handler
                failures = failures or []
                failures.append(failure_of(delivery, subscription, error, FailureKind.RAISED_AT_ONCE))
            except BaseException:
                self._interrupted(delivery, subscription, token)
                raise
            else:
                if log_seq:
                    self._handled(delivery, subscription)
                if subscription.stuck:
                    subscription.stuck = ""
            subscription.running = False
            if subscription.mailbox:
                self._pass_turn(subscription)
        delivery.running -= 1
        current_delivery.reset(token)
        return self._close(delivery, failures or ()) if failures or delivery.queued else None

    def _interrupted(
        self, delivery: Delivery, subscription: Subscription, token: Token[Delivery | None]
    ) -> None:
        """The program is on its way out; leave nothing marked as running."""
        delivery.running -= 1
        current_delivery.reset(token)
        self._free(subscription)

    async def _proceed(
        self,
        delivery: Delivery,
        targets: Sequence[Subscription],
        position: int,
        failures: list[Failure] | None,
        token: Token[Delivery | None],
        waiting: Waiting | None = None,
    ) -> None:
        """Go on from target *position*; *waiting* is the unfinished handler of the one before."""
        failed = failures or []
        place: MailboxPlace | None = None
        rest: deque[Subscription] | None = None
        if position < len(targets):
            place, rest = self._reserve(delivery, targets[position:], failed)
        subscription = targets[position - 1]
        running = subscription if waiting is not None else None
        try:
            while True:
                if waiting is not None:
                    await self._finish(delivery, subscription, waiting, failed)
                if not rest:
                    break
                running, waiting, subscription = None, None, rest[0]
                # Published inside a handler, and this one is busy, perhaps with that very handler: go on.
                if place is None and subscription.running:
                    failed += self.post(MailboxPlace(delivery, rest.popleft()))
                    continue
                turn = self._take(place, subscription)
                if turn is not None:
                    await turn
                # Taken off only now: a publisher that is cancelled before this hands it over.
                running = rest.popleft()
                waiting = self._run(delivery, subscription, failed)
        except asyncio.CancelledError:
            if running is not None:
                text = "cancelled with its publisher"
                failed.append(Failure(delivery, running, FailureKind.CANCELLED, text))
            self._hand_over(delivery, place, rest or ())
            # Without waiting: a second cancellation during a wait would lose the failures.
            self._outcomes.record_now(failed)
            raise
        finally:
            delivery.running -= 1
            current_delivery.reset(token)
        if failed or delivery.queued:
            await self._close(delivery, failed)

    async def _close(self, delivery: Delivery, failures: Sequence[Failure]) -> None:
        """Report what failed; the outermost publisher also waits for what its handlers left behind."""
        await self._outcomes.report_all(failures)
        if delivery.first is None and delivery.queued:
            delivery.settled = asyncio.get_running_loop().create_future()
            await delivery.settled

    def _reserve(
        self, delivery: Delivery, targets: Sequence[Subscription], failed: list[Failure]
    ) -> tuple[MailboxPlace | None, deque[Subscription]]:
        """Take a place in every mailbox now, so that later events stay behind this one.

        An event published inside a handler takes none: it waits for nobody.
        """
        if delivery.first is not None:
            return None, deque(targets)
        place, reserved = MailboxPlace(delivery, targets[0]), deque[Subscription]()
        for subscription in targets:
            if len(subscription.mailbox) >= self._mailbox_max:
                failed.append(overflow_of(delivery, subscription))
                continue
            subscription.mailbox.append(place)
            reserved.append(subscription)
        return place, reserved

    def _take(self, place: MailboxPlace | None, subscription: Subscription) -> asyncio.Future[None] | None:
        """Occupy *subscription*, now (None) or when what is returned says so."""
        if place is not None:
            if subscription.running or subscription.mailbox[0] is not place:
                # Each handler before this one is limited in time, and so is the wait.
                place.subscription, place.turn = subscription, asyncio.get_running_loop().create_future()
                return place.turn
            subscription.mailbox.popleft()
        subscription.running = True
        return None

    def _hand_over(
        self, delivery: Delivery, place: MailboxPlace | None, rest: Iterable[Subscription]
    ) -> None:
        """The publisher was cancelled: the router delivers the rest, unless all is being cancelled."""
        for subscription in rest:
            own = MailboxPlace(delivery, subscription)  # in its mailbox alone
            # The turn may come in the step in which the publisher is cancelled; unused, it would leave the
            # subscription marked as running for good.
            granted = place is not None and place.has_turn(subscription)
            if self._is_ending():
                self._give_up(own, place, granted=granted)
            elif granted:
                self._keep(own)
                self._start(own)
            elif place is None or place not in subscription.mailbox:
                self.post_or_report(own)
            else:
                self._keep(own)
                subscription.mailbox[subscription.mailbox.index(place)] = own
                if not subscription.running and subscription.mailbox[0] is own:
                    self._pass_turn(subscription)

    def _keep(self, place: MailboxPlace) -> None:
        """The router is to run it, in the context of here and now."""
        place.context = copy_context()
        place.delivery.queue()

    # --- one handler ----------------------------------------------------------------------------------

    def _run(self, delivery: Delivery, subscription: Subscription, failed: list[Failure]) -> Waiting | None:
        """Run one handler until it waits, or to its end; the subscription is marked as running."""
        # It was ended while the event waited in its mailbox.
        if not subscription.active:
            self._free(subscription)
            return None
        try:
            result = subscription.callback(delivery.event)
            waiting = None if result is None else first_step(result)
        except Exception as error:  # noqa: BLE001 - a handler's failure stays with that handler
            self._free(subscription)
            failed.append(failure_of(delivery, subscription, error, FailureKind.RAISED_AT_ONCE))
            return None
        except BaseException:
            self._free(subscription)
            raise
        if waiting is None:
            self._end(delivery, subscription)
        return waiting

    @coroutine_of_generator
    def _finish(
        self, delivery: Delivery, subscription: Subscription, waiting: Waiting, failed: list[Failure]
    ) -> Generator[Any, Any, None]:
        """Await a started handler within its time; one that does not end when cancelled is left."""
        coroutine, pending = waiting
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        # The task is the publisher's: only cancellations from here on are this handler's.
        cancels = task.cancelling()
        subscription.waiting_in = delivery
        self._limits.begin(subscription, subscription.timeout_s or self.timeout_s, task)
        try:
            try:
                # The usual case, as short as it can be: a future that ends at once when it is cancelled.
                while pending is None or type(pending) is asyncio.Future:
                    yield pending
                    pending = coroutine.send(None)
                error = None
            except (Exception, asyncio.CancelledError) as found:
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
                    raise  # its own
                error = found  # for it: what it waits for failed or was cancelled
            careful = finish((coroutine, pending), error, cancels, grace_s=self._grace_s)
            yield from careful.__await__()
        except StopIteration:
            pass
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it stays with that handler
            expired = not self._limits.end(subscription)
            cancelled = (task.uncancel() if expired else task.cancelling()) > cancels
            failed += self._failed(delivery, subscription, error, expired=expired, cancelled=cancelled)
            return
        if not self._limits.end(subscription):
            task.uncancel()  # it ended well after its time was over
        self._end(delivery, subscription)

    def _failed(
        self,
        delivery: Delivery,
        subscription: Subscription,
        error: BaseException,
        *,
        expired: bool,
        cancelled: bool,
    ) -> list[Failure]:
        """How a handler that had waited failed. Raises if it was cancelled with its publisher."""
        limit_s = subscription.timeout_s or self.timeout_s
        text = f"timed out after {limit_s:g} s" if expired else "cancelled with its publisher"
        ignored = isinstance(error, IgnoredCancellation)
        if ignored:
            text = subscription.stuck = f"{text}; {error}"
        self._free(subscription)
        if cancelled and (ignored or isinstance(error, asyncio.CancelledError)):
            raise asyncio.CancelledError from error
        if expired or ignored:
            return [Failure(delivery, subscription, FailureKind.TIMEOUT, text, error)]
        return [failure_of(delivery, subscription, error, FailureKind.RAISED)]

    def _end(self, delivery: Delivery, subscription: Subscription) -> None:
        subscription.stuck = ""
        if delivery.log_seq:
            self._handled(delivery, subscription)
        self._free(subscription)

    def _free(self, subscription: Subscription) -> None:
        subscription.running = False
        subscription.waiting_in = None
        if subscription.mailbox:
            self._pass_turn(subscription)

    def _pass_turn(self, subscription: Subscription) -> None:
        """Let the first in the mailbox go, unless its publisher has not come to it yet."""
        if self._is_ending():
            self._give_up_queued(subscription)
            if not subscription.mailbox:
                return
        head = subscription.mailbox[0]
        if head.context is not None:
            subscription.mailbox.popleft()
            subscription.running = True
            self._start(head)
        # One place stands in several mailboxes; it can go on only where its publisher waits now.
        elif head.turn is not None and head.subscription is subscription and not head.turn.done():
            subscription.mailbox.popleft()
            subscription.running = True
            head.turn.set_result(None)

    # --- deliveries nobody waits for at once ----------------------------------------------------------

    def post(self, place: MailboxPlace) -> list[Failure]:
        """Leave an event in a mailbox; the router runs it in its turn, in the caller's context."""
        subscription = place.subscription
        if self._is_ending():
            self._outcomes.record_cancelled(place.delivery, subscription)
            return []
        # Refused and not awaited: a handler that waits for room in its own mailbox would wait for ever.
        if len(subscription.mailbox) >= self._mailbox_max:
            return [overflow_of(place.delivery, subscription)]
        self._keep(place)
        if subscription.running or subscription.mailbox:
            subscription.mailbox.append(place)
        else:
            subscription.running = True
            self._start(place)
        return []

    def post_or_report(self, place: MailboxPlace) -> None:
        """As `post`, for a caller that does not wait for the report of a full mailbox."""
        if failures := self.post(place):
            self._tasks.spawn(self._outcomes.report_all(failures))

    async def redeliver(self, event: RouterEvent, subscription: Subscription) -> Failure | None:
        """Run one subscription once more, in its turn; the failure is returned and not reported."""
        delivery = Delivery(event)
        place = MailboxPlace(delivery, subscription)
        # Whether the mailbox is full is not asked: a full one may be what made this a dead letter.
        subscription.mailbox.append(place)
        try:
            if (turn := self._take(place, subscription)) is not None:
                await turn
        except asyncio.CancelledError:
            if place in subscription.mailbox:
                subscription.mailbox.remove(place)
            else:
                self._free(subscription)
            raise
        token = current_delivery.set(delivery)
        delivery.running += 1
        failures: list[Failure] = []
        try:
            if (waiting := self._run(delivery, subscription, failures)) is not None:
                await self._finish(delivery, subscription, waiting, failures)
        finally:
            delivery.running -= 1
            current_delivery.reset(token)
        return failures[0] if failures else None

    def _start(self, place: MailboxPlace) -> None:
        self._tasks.spawn(self._run_posted(place), place)

    async def _run_posted(self, place: MailboxPlace) -> None:
        place.begun = True
        delivery, subscription = place.delivery, place.subscription
        current_delivery.set(delivery)  # in the context of this task alone
        delivery.running += 1
        failures: list[Failure] = []
        try:
            if (waiting := self._run(delivery, subscription, failures)) is not None:
                await self._finish(delivery, subscription, waiting, failures)
        except asyncio.CancelledError:
            self._outcomes.record_cancelled(delivery, subscription)
            raise
        finally:
            delivery.running -= 1
            delivery.unqueue()
        if failures:
            await self._outcomes.report_all(failures)

    # --- the end --------------------------------------------------------------------------------------

    async def drain(self, subscriptions: Iterable[Subscription], *, timeout_s: float) -> None:
        """Wait for the deliveries under way and those behind them, then end what is left."""
        await self._tasks.wait(timeout_s=timeout_s)
        # In rounds: what a cancelled handler publishes in its clean-up starts further deliveries.
        while self._tasks:
            for subscription in subscriptions:
                self._give_up_queued(subscription)  # or each that is cancelled would start the next
            await self._tasks.cancel()

    def _give_up_queued(self, subscription: Subscription) -> None:
        """Take out what the router was to run; what a publisher waits for is the publisher's."""
        for place in [each for each in subscription.mailbox if each.context is not None]:
            subscription.mailbox.remove(place)
            self._outcomes.record_cancelled(place.delivery, subscription)
            place.delivery.unqueue()

    def _give_up(self, own: MailboxPlace, place: MailboxPlace | None, *, granted: bool) -> None:
        """Take out what a publisher waits for who is being cancelled with the loop."""
        subscription = own.subscription
        if place is not None and place in subscription.mailbox:
            subscription.mailbox.remove(place)
        self._outcomes.record_cancelled(own.delivery, subscription)
        if granted or (subscription.mailbox and not subscription.running):
            self._free(subscription)

    def _never_began(self, place: MailboxPlace) -> None:
        self._outcomes.record_cancelled(place.delivery, place.subscription)
        place.delivery.unqueue()
        self._free(place.subscription)

    def abandon(self, subscriptions: Iterable[Subscription]) -> int:
        """Give up what a loop that is gone left behind; return how many deliveries that were."""
        lost = 0
        self._limits.clear()
        for place in self._tasks.forget():
            self._outcomes.record_cancelled(place.delivery, place.subscription)
        for subscription in subscriptions:
            lost += len(subscription.mailbox) + subscription.running
            while subscription.mailbox:
                self._outcomes.record_cancelled(subscription.mailbox.popleft().delivery, subscription)
            if subscription.running and subscription.waiting_in is not None:
                self._outcomes.record_cancelled(subscription.waiting_in, subscription)
            subscription.running, subscription.waiting_in = False, None
        return lost
