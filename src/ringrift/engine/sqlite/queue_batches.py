"""Work on its way in and out, prepared outside the transaction.

While a transaction is open all other processes wait, so everything that can be done before or after it is
done there. Many items become one statement with one JSON parameter: the driver hands the interpreter
lock back and forth at every step of a statement, which costs more than the step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ringrift.engine.arguments import check_call_size, check_completions, check_new_work
from ringrift.engine.encoding import decode_json, encode_json, encode_trace
from ringrift.engine.ports import Claim, Completion, NewWork
from ringrift.engine.sqlite.checksums import of_work

LaneKey = tuple[str, str, str, str]
_SEPARATOR = "\x1f"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PlainRun:
    """Items of one lane, next to each other, without dependencies and idempotency keys."""

    lane: LaneKey
    ids: list[str]
    rows: str


@dataclass(frozen=True, slots=True)
class LinkedItem:
    """An item that needs others or has an idempotency key."""

    lane: LaneKey
    id: str
    new: NewWork
    row: str


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Completions under one token with one result."""

    token: int
    result: bytes
    ids: list[str]


def as_parameter(values: Iterable[Any]) -> str:
    """Many values as one parameter of a query."""
    return _encode(list(values)).decode()


def lane_of(new: NewWork) -> LaneKey:
    requires = _SEPARATOR.join(sorted(new.requires)) if new.requires else ""
    return new.kind, new.node or "", requires, new.group


def requirements(text: str) -> frozenset[str]:
    """Read back what `lane_of` wrote."""
    return frozenset(text.split(_SEPARATOR)) if text else frozenset()


def prepare(items: Sequence[NewWork], new_id: Callable[[], str]) -> list[PlainRun | LinkedItem]:
    """Check and encode *items*; `ConfigError` for the first that makes no sense."""
    check_new_work(items)
    parts: list[PlainRun | LinkedItem] = []
    run_lane: LaneKey | None = None
    ids: list[str] = []
    rows: list[tuple[Any, ...]] = []
    sizes: list[int] = []

    def end_run() -> None:
        if run_lane is not None and rows:
            parts.append(PlainRun(run_lane, ids.copy(), as_parameter(rows)))
            ids.clear()
            rows.clear()

    for new in items:
        item_id, lane = new.id or new_id(), lane_of(new)
        payload, trace = encode_json("payload", new.payload), encode_trace(new.trace)
        checksum = of_work(item_id, payload, trace)
        row = (
            item_id,
            new.priority,
            new.attempts_max,
            new.delay_s,
            trace.decode(),
            payload.decode(),
            checksum,
        )
        sizes.append(len(payload) + len(trace))
        if new.after or new.idempotency_key is not None:
            end_run()
            parts.append(LinkedItem(lane, item_id, new, as_parameter([row])))
            continue
        if lane != run_lane:
            end_run()
            run_lane = lane
        ids.append(item_id)
        rows.append(row)
    end_run()
    check_call_size("items", sizes)
    return parts


def group(done: Sequence[Completion]) -> list[FinishedRun]:
    """Put together what one statement can complete; each id once per run."""
    check_completions(done)
    runs: dict[tuple[int, bytes], dict[str, None]] = {}
    for each in done:
        runs.setdefault((each.token, encode_json("result", each.result)), {})[each.id] = None
    check_call_size("results", (len(result) for _, result in runs))
    return [FinishedRun(token, result, list(ids)) for (token, result), ids in runs.items()]


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """What a claim brought, as it came from the database."""

    rows: Sequence[tuple[Any, ...]]
    token: int
    until_s: float

    def claims(self) -> list[Claim]:
        return [
            Claim(
                id=item_id,
                kind=kind,
                payload=decode_json(f"work item {item_id}", payload),
                token=self.token,
                attempt=attempts,
                lease_until_s=self.until_s,
                trace=decode_json(f"work item {item_id}", trace),
            )
            for item_id, kind, payload, attempts, trace in self.rows
        ]
