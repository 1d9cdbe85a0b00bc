"""The emitters: one for every spelling of every event, with the argument order that callers know.

An emitter asks its caller for less than the catalog when its known signature does: what the signature calls
optional may be left out, and the router's own validation has the last word.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any

from ringrift.engine.blocking import loop_is_running
from ringrift.errors import PayloadError, Unavailable
from ringrift.events.catalog.names import EventTypeValidator, resolve, resolve_alias
from ringrift.events.catalog.table import (
    ALIASES,
    CATALOG,
    EventSpec,
    FieldSpec,
    Payload,
    read_rows,
    split_names,
)
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import system_runtime

PREFIX = "emit_"
SYNC_SUFFIX = "_sync"
HERE = "@host"
JOB = "@job"

_CONFIG_PARTS = {"board_type": "str", "num_players": "int"}


@dataclass(frozen=True, slots=True)
class EmitterSpec:
    """One emitter: what it publishes, its arguments in order, and what it cannot do without."""

    name: str
    publishes: str
    event: EventSpec
    parameters: tuple[FieldSpec, ...]
    demands: frozenset[str]
    defaults: Mapping[str, str | bool]


def _parameter(event: EventSpec, text: str) -> FieldSpec:
    """The argument *text* (`name` or `name?`), typed by the field that it fills."""
    name = text.removesuffix("?")
    types = {item.name: item.type for item in event.fields} | _CONFIG_PARTS
    kind = types.get(name) or types.get(event.field_aliases.get(name, ""), "any")
    return FieldSpec(name, kind, not text.endswith("?"))


def _demands(event: EventSpec, parameters: tuple[FieldSpec, ...]) -> frozenset[str]:
    asked = {event.field_aliases.get(item.name, item.name) for item in parameters if item.required}
    if asked.issuperset(_CONFIG_PARTS):
        asked.add("config_key")
    return frozenset(item.name for item in event.fields if item.required and item.name in asked)


def _documented() -> dict[str, EmitterSpec]:
    table: dict[str, EmitterSpec] = {}
    for row in read_rows("emitters.csv"):
        publishes = row["publishes"]
        alias = ALIASES.get(publishes)
        event = CATALOG[alias.canonical if alias else publishes]
        parameters = tuple(_parameter(event, text) for text in split_names(row["parameters"]))
        pairs = (text.partition("=") for text in split_names(row["defaults"]))
        defaults: dict[str, str | bool] = {key: True if value == "true" else value for key, _, value in pairs}
        demands = _demands(event, parameters) - defaults.keys()
        table[row["emitter"]] = EmitterSpec(row["emitter"], publishes, event, parameters, demands, defaults)
    return table


def _plain(name: str, publishes: str, event: EventSpec) -> EmitterSpec:
    required = frozenset(item.name for item in event.fields if item.required)
    return EmitterSpec(name, publishes, event, event.fields, required, {})


def _table() -> dict[str, EmitterSpec]:
    table = _documented()
    for event in CATALOG.values():
        for spelling in (event.name.lower(), event.value):
            table.setdefault(spelling, _plain(spelling, event.name, event))
    for alias in ALIASES.values():
        spelling, event = alias.alias.lower(), CATALOG[alias.canonical]
        known = table[event.name.lower()]
        table.setdefault(
            spelling,
            EmitterSpec(spelling, alias.alias, event, known.parameters, known.demands, known.defaults),
        )
    return dict(sorted(table.items()))


EMITTERS: Mapping[str, EmitterSpec] = MappingProxyType(_table())


# How an emitter turns its arguments into a published event.
#
# What an emitter cannot do without, and every wrong type, is a `PayloadError` before anything is published.
# Arguments that are None are left out: a handler never meets a field that is there and empty.


# Short enough for a caller that waits; when the log is away for longer, the emitter raises.
RETRY_DELAYS_S = (0.5, 1.0, 2.0)
ELO_SIGNIFICANT = 25.0
"""Change of a rating, in Elo, from which it is announced as significant."""

# Where an emitter publishes, and who judges its payload before: asked at each call.
Sender = Callable[[], tuple[UnifiedEventRouter, EventTypeValidator]]


def is_critical_event(event_type: Any) -> bool:
    """Whether the loop cannot do without this event, so that its emitter tries again."""
    spec = resolve(event_type)[1]
    return spec is not None and spec.retried


def prepare(
    spec: EmitterSpec, args: Sequence[Any], fields: Mapping[str, Any], validator: EventTypeValidator
) -> tuple[EventSpec, Payload]:
    """Turn the arguments of one call into an event and its payload."""
    name, payload = resolve_alias(spec.publishes, _arguments(spec, args, fields))
    event = CATALOG[name]
    payload = _complete(event, event.canonical_payload(payload), spec.defaults)
    # An alias may lead to another event (a failed promotion), which this signature knows nothing of.
    demands = spec.demands if event is spec.event else frozenset[str]()
    problems = (*event.missing(payload, demands), *event.wrong_types(payload))
    if problems:
        raise PayloadError(event.name, problems=problems)
    validator.check_payload(event, payload)
    return event, payload


def _arguments(spec: EmitterSpec, args: Sequence[Any], fields: Mapping[str, Any]) -> Payload:
    call = f"emit_{spec.name}()"
    if len(args) > len(spec.parameters):
        raise TypeError(f"{call} takes {len(spec.parameters)} positional arguments, {len(args)} were given")
    given = {item.name: value for item, value in zip(spec.parameters, args, strict=False)}
    if twice := given.keys() & fields.keys():
        raise TypeError(f"{call} got several values for {', '.join(sorted(twice))}")
    return {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in {**given, **fields}.items()
        if value is not None
    }


def _complete(event: EventSpec, payload: Payload, defaults: Mapping[str, str | bool]) -> Payload:
    added: Payload = {key: _default(value, payload) for key, value in defaults.items() if key not in payload}
    if event.name == "ELO_UPDATED" and "elo_delta" not in payload:
        new, old = payload.get("new_elo"), payload.get("old_elo")
        # A rating of another type is left for the check that follows to refuse.
        if isinstance(new, int | float) and isinstance(old, int | float):
            added["elo_delta"] = new - old
    return {**payload, **added} if added else payload


def _default(value: object, payload: Payload) -> Any:
    """What is meant by a default of the emitter table: the value itself, this host, or a name for a job."""
    if value == HERE:
        return system_runtime().hostname
    if value != JOB:
        return value
    # Of a turn of the loop there is one training a config; without a turn nothing sets two of them apart.
    turn = payload.get("iteration")
    number = system_runtime().new_id() if turn is None else turn
    return f"{payload.get('config_key', 'training')}_{number}"


def follow_ups(event: EventSpec, payload: Payload) -> list[tuple[EventSpec, Payload]]:
    """Return the events that follow from this one."""
    if event.name != "ELO_UPDATED" or abs(payload.get("elo_delta", 0.0)) < ELO_SIGNIFICANT:
        return []
    kept = {key: payload[key] for key in ("config_key", "model_id", "elo_delta", "new_elo", "old_elo")}
    return [(CATALOG["ELO_SIGNIFICANT_CHANGE"], {**kept, "threshold": ELO_SIGNIFICANT})]


async def _publish(router: UnifiedEventRouter, event: EventSpec, payload: Payload, source: str) -> None:
    for delay_s in RETRY_DELAYS_S if event.retried else ():
        try:
            await router.publish(event.name, payload, source)
            return
        except Unavailable:
            await system_runtime().sleep(delay_s)
    # The last attempt is not caught: its error is the caller's.
    await router.publish(event.name, payload, source)


def _publish_sync(router: UnifiedEventRouter, event: EventSpec, payload: Payload, source: str) -> None:
    # Inside a loop the delivery is a task, so there is no error here that could be tried again.
    for delay_s in RETRY_DELAYS_S if event.retried and not loop_is_running() else ():
        try:
            router.publish_sync(event.name, payload, source)
            return
        except Unavailable:
            asyncio.run(system_runtime().sleep(delay_s))
    router.publish_sync(event.name, payload, source)


async def emit(
    sender: Sender, spec: EmitterSpec, args: Sequence[Any], fields: Mapping[str, Any], source: str
) -> bool:
    """Publish; True once every local subscriber has been served."""
    router, validator = sender()
    event, payload = prepare(spec, args, fields, validator)
    for item, values in [(event, payload), *follow_ups(event, payload)]:
        await _publish(router, item, values, source)
    return True


def emit_sync(
    sender: Sender, spec: EmitterSpec, args: Sequence[Any], fields: Mapping[str, Any], source: str
) -> bool:
    """Publish from a function that cannot wait; True once the event is on its way.

    Without a running loop that means delivered. Inside one, the router delivers it as a task of its own.
    """
    router, validator = sender()
    event, payload = prepare(spec, args, fields, validator)
    for item, values in [(event, payload), *follow_ups(event, payload)]:
        _publish_sync(router, item, values, source)
    return True


def make_async_emitter(spec: EmitterSpec, sender: Sender) -> Callable[..., Awaitable[bool]]:
    async def emitter(*args: Any, source: str = "", **fields: Any) -> bool:
        return await emit(sender, spec, args, fields, source)

    _describe(emitter, spec, f"emit_{spec.name}")
    return emitter


def make_sync_emitter(spec: EmitterSpec, sender: Sender) -> Callable[..., bool]:
    def emitter(*args: Any, source: str = "", **fields: Any) -> bool:
        return emit_sync(sender, spec, args, fields, source)

    _describe(emitter, spec, f"emit_{spec.name}_sync")
    return emitter


def _describe(emitter: Callable[..., Any], spec: EmitterSpec, name: str) -> None:
    """Make a generated function look like a written one."""
    taken = {item.name for item in spec.parameters}
    further = [item.name for item in spec.event.fields if item.name not in taken]
    plain = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(item.name, plain, default=None) for item in spec.parameters]
    parameters += [Parameter(item, Parameter.KEYWORD_ONLY, default=None) for item in further]
    parameters.append(Parameter("source", Parameter.KEYWORD_ONLY, default=""))
    parameters.append(Parameter("fields", Parameter.VAR_KEYWORD))
    emitter.__name__ = emitter.__qualname__ = name
    emitter.__doc__ = f"Publish {spec.event.name}; further fields by keyword."
    vars(emitter)["__signature__"] = Signature(parameters, return_annotation=bool)
