"""What somebody outside of the loop says was done: games played, samples exported, a model trained.

The run knows what its own jobs sealed. A claim about anything else is no fact of it: it is refused with the
reason, which is kept for a week, and changes no number. A repeated event is refused once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from ringrift.engine.encoding import decode_entry
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists
from ringrift.events.routed_event import RouterEvent
from ringrift.learning.announcing import SOURCE as LOOP

PREFIX = "learning/refused_claim/"
KEPT_S = 7 * 86_400.0
KEPT_MAX = 200  # a sender that does not stop must not fill the store
SHOWN = 20

log = structlog.get_logger()

# Event: what it claims, and the field that names its file.
CLAIMS: Mapping[str, tuple[str, str]] = {
    "SELFPLAY_COMPLETE": ("games", "db_path"),
    "NPZ_EXPORT_COMPLETE": ("samples", "output_path"),
    "TRAINING_COMPLETED": ("a model", "model_path"),
}


class RefusedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim that was not taken in."""

    event_type: str
    event_id: str
    source: str
    config_key: str
    at_s: float
    reason: str


def refusal(event: RouterEvent) -> RefusedClaim | None:
    """Why *event* changes nothing; None if the loop told it, or it claims nothing."""
    claim = CLAIMS.get(event.event_type)
    if claim is None or event.source == LOOP or event.payload.get("success") is False:
        return None
    return RefusedClaim(
        event_type=event.event_type,
        event_id=event.event_id,
        source=event.source,
        config_key=str(event.payload.get("config_key") or ""),
        at_s=event.timestamp,
        reason=_reason(*claim, event.payload),
    )


def _reason(what: str, field: str, payload: Mapping[str, Any]) -> str:
    path = str(payload.get(field) or "")
    named = f"names {path}, which no job of the run has sealed" if path else f"names no file ({field})"
    return (
        f"it claims {what} and {named}; the run takes in what its jobs bring: "
        "give it a program of your own as a job with [jobs] in ringrift.toml"
    )


async def keep_refusal(claim: RefusedClaim) -> None:
    """Write it to the log, and to the store if there is one and it has room."""
    log.warning("pipeline.claim_refused", **msgspec.to_builtins(claim))
    engine = await existing_engine()
    if engine is None or len(await engine.kv.entries(PREFIX)) >= KEPT_MAX:
        return
    try:
        await engine.kv.create(PREFIX + claim.event_id, msgspec.json.encode(claim), ttl_s=KEPT_S)
    except AlreadyExists:
        return  # another process heard it too


async def refused_claims(kv: KeyValue) -> list[RefusedClaim]:
    """The newest first."""
    found = [decode_entry(entry, RefusedClaim) for entry in await kv.entries(PREFIX)]
    return sorted(found, key=lambda claim: -claim.at_s)[:SHOWN]
