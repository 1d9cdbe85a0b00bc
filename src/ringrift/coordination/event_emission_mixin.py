"""Publishing for classes of one's own: events go to the router of this process, with the class as source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from ringrift.coordination.event_router import get_router
from ringrift.errors import ConfigError, RingRiftError, described
from ringrift.events.unified_router import UnifiedEventRouter

__all__ = ["EventEmissionMixin", "PublishesEvents"]

log = structlog.get_logger()


class PublishesEvents:
    """Adds `emit_event` and its variants. The source is the object's `name`, else the name of its class."""

    event_router: UnifiedEventRouter | None = None  # None: the router of this process

    @property
    def event_source(self) -> str:
        return str(getattr(self, "name", "") or type(self).__name__)

    async def emit_event(self, event_type: Any, payload: Mapping[str, Any] | None = None) -> None:
        """Publish; returns when every local subscriber has been served. Raises what publishing raises."""
        router = self.event_router or get_router()
        await router.publish(event_type, dict(payload or {}), self.event_source)

    async def emit_event_safe(self, event_type: Any, payload: Mapping[str, Any] | None = None) -> bool:
        """Publish; False, with the reason in the log, if it cannot be stored now.

        A payload that the catalog refuses is a mistake of the caller and is raised.
        """
        try:
            await self.emit_event(event_type, payload)
        except ConfigError:
            raise
        except RingRiftError as error:
            log.warning("events.not_emitted", event_type=str(event_type), reason=described(error))
            return False
        return True


EventEmissionMixin = PublishesEvents
