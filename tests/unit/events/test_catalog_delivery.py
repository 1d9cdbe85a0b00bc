"""Whatever spelling is published and whatever spelling is subscribed, the event arrives, once."""

import asyncio
from collections import Counter

from ringrift.coordination.event_router import get_router
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.table import ALIASES


def spellings(member):
    return member, member.name, member.value


async def publish_together(names):
    """At once, so that all of them share the commits of the log; return who published what."""
    events = await asyncio.gather(*(get_router().publish(name, {}) for name in names))
    return Counter(event.event_type for event in events)


async def test_enum_name_and_value_reach_each_other():
    router, heard = get_router(), Counter()
    for member in DataEventType:
        for spelling in spellings(member):
            router.subscribe(spelling, lambda event: heard.update([event.event_type]))
    for count, names in enumerate(zip(*map(spellings, DataEventType), strict=True), 1):
        assert await publish_together(names) == dict.fromkeys(DataEventType.__members__, 1)
        assert heard == dict.fromkeys(DataEventType.__members__, 3 * count)


async def test_an_alias_reaches_the_subscribers_of_its_event():
    router, heard = get_router(), Counter()
    for canonical in {alias.canonical for alias in ALIASES.values()}:
        router.subscribe(canonical, lambda event: heard.update([event.event_type]))
    names = [name for alias in ALIASES for name in (alias, alias.lower())]
    expected = Counter([alias.canonical for alias in ALIASES.values()] * 2)
    assert await publish_together(names) == expected
    assert heard == expected


async def test_a_tournament_is_no_verdict_and_a_failed_promotion_no_promotion():
    router, heard = get_router(), []
    for name in ("EVALUATION_COMPLETED", "MODEL_PROMOTED", "PBT_GENERATION_COMPLETE"):
        router.subscribe(name, lambda event: heard.append(event.event_type))
    await router.publish("SHADOW_TOURNAMENT_COMPLETE", {})
    await router.publish("PROMOTION_COMPLETE", {"success": False})
    await router.publish("TIER_GATING_COMPLETE", {"passed": False})
    await router.publish("PBT_COMPLETED", {})
    assert heard == []
