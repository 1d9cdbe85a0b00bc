"""What somebody outside of the loop says was done: games played, samples exported, a model trained.

A claim becomes a fact only with its file (`intake`). One without, or with a file that cannot be taken in, is
refused with the reason, which is kept for a week, and changes no number. A repeated event is refused once.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def is_claim(event: RouterEvent) -> bool:
    """Whether somebody other than the loop says that he brought something."""
    told_by_other = event.event_type in CLAIMS and event.source != LOOP
    return told_by_other and event.payload.get("success") is not False


def refused(event: RouterEvent, why: str) -> RefusedClaim:
    what, _ = CLAIMS[event.event_type]
    return RefusedClaim(
        event_type=event.event_type,
        event_id=event.event_id,
        source=event.source,
        config_key=str(event.payload.get("config_key") or ""),
        at_s=event.timestamp,
        reason=f"it claims {what}, and {why}",
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
