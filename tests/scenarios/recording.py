"""What a scenario proves: which events product code sent, and which product code received.

A scenario brings about the cause and no more. It names the events that must come of it:

    @scenario("TRAINING_STARTED", "TRAINING_COMPLETED")
    def test_a_config_is_trained(): ...

and fails for each of them that no product code sent, or that no subscription of the product received.
"""

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringrift.engine.opening import open_engine
from ringrift.events.catalog.audit import INTERNAL, read_last_seen
from ringrift.events.catalog.emission import EMITTERS
from ringrift.events.catalog.names import resolve
from ringrift.events.catalog.table import CATALOG
from ringrift.events.subscriptions import SubscriptionTable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import system_runtime
from ringrift.settings import Settings

HERE = Path(__file__).parent

# They hand on what somebody else publishes: the sender is who called them.
HANDS_ON = {
    "ringrift.coordination.cross_process_events",
    "ringrift.coordination.event_buses",
    "ringrift.coordination.event_emission_mixin",
    "ringrift.coordination.event_emitters",
    "ringrift.coordination.event_router",
    "ringrift.coordination.handler_base",
    "ringrift.coordination.run_coordinator",
    "ringrift.events.catalog.emission",
    "ringrift.events.handlers",
    "ringrift.events.router_loop",
    "ringrift.events.unified_router",
    "ringrift.web.endpoints",
    "ringrift.web.probes",
}
PUBLISHING = ("publish", "publish_event", "publish_sync")
# Functions by which a test could send an event itself; the emitters of one event come from the catalog.
PUBLISH_CALLS = {
    *PUBLISHING, "emit", "emit_sync", "emit_event", "safe_emit_event", "safe_emit_event_async",
    "emit_generic_event", "emit_data_event", "bridge_to_cross_process", "post",
}  # fmt: skip


def scenario(*events):
    """Mark a test that brings about the cause of *events*."""
    if unknown := sorted(set(events) - CATALOG.keys()):
        raise ValueError(f"the catalog has no event {unknown[0]}")
    return pytest.mark.scenario(*events)


def is_product(module):
    return module.partition(".")[0] in {"ringrift", "app"} and not module.startswith("ringrift.testing")


@dataclass
class Recording:
    """Senders and receivers of every event, by the name of their module."""

    sent: defaultdict = field(default_factory=lambda: defaultdict(set))
    received: defaultdict = field(default_factory=lambda: defaultdict(set))

    def note_sent(self, spelling):
        name = getattr(spelling, "event_type", spelling)
        self.sent[resolve(name)[0]].add(_caller())

    def note_received(self, event_type, module):
        self.received[event_type].add(module)

    async def add_folder(self, folder):
        """Take in what the processes of a data folder kept of the events they sent and received."""
        engine = await open_engine(Settings(data_dir=folder), system_runtime())
        try:
            seen = await read_last_seen(engine.kv)
        finally:
            await engine.close()
        for name, last in seen.items():
            # No test runs in those processes: whoever sends or asks for an event there is the product.
            if last.sent_s is not None:
                self.sent[name].add(f"ringrift in {folder}")
            if last.received_s is not None:
                self.received[name].add(f"ringrift in {folder}")

    def lacking(self, events):
        """Say, for each event, what is not proven."""
        found = []
        for name in events:
            senders, receivers = self.sent[name], self.received[name]
            if not any(map(is_product, senders)):
                by = f" (only by {', '.join(sorted(senders))})" if senders else ""
                found.append(f"{name} was not sent by product code{by}")
            elif not any(is_product(each) or heard_by_users(name) for each in receivers):
                by = f" (only by {', '.join(sorted(receivers))})" if receivers else ""
                sent_by = ", ".join(sorted(filter(is_product, senders)))
                found.append(f"{name} was sent by {sent_by} and not received by product code{by}")
        return found


def heard_by_users(name):
    """Whether nobody of the product is meant to hear it; then a subscription of the test counts."""
    spec = CATALOG[name]
    return spec.note == INTERNAL or not spec.consumed_by


def _caller():
    """The module that wanted the event published: the innermost one that does not only hand it on."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        ours = is_product(module) or Path(frame.f_code.co_filename).is_relative_to(HERE.parent)
        if ours and module not in HANDS_ON and module != __name__:
            return module
        frame = frame.f_back
    return "a task of its own"


class _Heard:
    """A callback that notes what it has handled; equal to the callback, so that it is found again."""

    def __init__(self, callback, recording):
        self._callback, self._recording = callback, recording
        self._module = module_of(callback)

    def __call__(self, event):
        result = self._callback(event)
        if isinstance(result, Coroutine):
            return self._noted_after(result, event.event_type)
        self._recording.note_received(event.event_type, self._module)
        return result

    async def _noted_after(self, result, event_type):
        found = await result
        self._recording.note_received(event_type, self._module)
        return found

    def __eq__(self, other):
        return self._callback == (other._callback if isinstance(other, _Heard) else other)

    def __hash__(self):
        return hash(self._callback)

    def __getattr__(self, name):
        return getattr(self._callback, name)


def module_of(callback):
    """Where a callback is written, below what is wrapped around it."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    callback = getattr(callback, "__wrapped__", callback)
    function = getattr(callback, "__func__", callback)
    module = getattr(function, "__module__", None) or type(function).__module__
    if module in HANDS_ON:  # a callback that counts or limits another one
        inner = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        found = [module_of(each) for each in inner if callable(each)]
        return next((each for each in found if each not in HANDS_ON), module)
    return module


@contextmanager
def recorded(monkeypatch):
    """Watch every router of this process."""
    recording = Recording()
    with monkeypatch.context() as patched:
        for name in PUBLISHING:
            patched.setattr(UnifiedEventRouter, name, _noting(recording, getattr(UnifiedEventRouter, name)))
        patched.setattr(SubscriptionTable, "add", _listening(recording, SubscriptionTable.add))
        yield recording


def _noting(recording, publish):
    @functools.wraps(publish)
    def noting(router, event_type, *args, **options):
        recording.note_sent(event_type)
        return publish(router, event_type, *args, **options)

    return noting


def _listening(recording, add):
    @functools.wraps(add)
    def listening(table, subscription):
        if subscription.event_types is not None:  # whoever hears everything was not asked for it
            subscription.callback = _Heard(subscription.callback, recording)
        add(table, subscription)

    return listening


# What the files of scenarios declare, and what they send themselves, read without running them.


def scenario_files():
    return sorted(HERE.glob("*.py"))


def declared(tree):
    """Events of each test function of a file, by the function's name."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "scenario":
                found[node.name] = {ast.literal_eval(each) for each in mark.args}
    return found


def published_by(tree):
    """(line, event) of every call that sends an event which the call names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        emitter = EMITTERS.get(called.removeprefix("emit_").removesuffix("_sync"))
        if called.startswith("emit_") and emitter is not None:
            yield node.lineno, emitter.event.name
        elif called in PUBLISH_CALLS:
            for argument in [*node.args, *(word.value for word in node.keywords)]:
                if (event := _named_by(argument)) is not None:
                    yield node.lineno, event


def _named_by(argument):
    """The event of the catalog that an argument names, written out or as a member of an enum."""
    text = argument.value if isinstance(argument, ast.Constant) else getattr(argument, "attr", None)
    name, spec = resolve(text) if isinstance(text, str) else (None, None)
    return name if spec is not None else None
