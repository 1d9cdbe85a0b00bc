"""Whatever spelling is published and whatever spelling is subscribed, the event arrives, once."""

import pytest

from ringrift.events.catalog import ALIASES
from ringrift.events.event_types import DataEventType
from ringrift.events.router import get_router


@pytest.mark.parametrize("member", DataEventType)
async def test_enum_name_and_value_reach_each_other(member):
    router, heard = get_router(), []
    for spelling in (member, member.name, member.value):
        router.subscribe(spelling, lambda event: heard.append(event.event_type))
    for count, spelling in enumerate((member, member.name, member.value), 1):
        await router.publish(spelling, {})
        assert heard == [member.name] * 3 * count


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.alias)
async def test_an_alias_reaches_the_subscribers_of_its_event(alias):
    router, heard = get_router(), []
    router.subscribe(alias.canonical, lambda event: heard.append(event.event_type))
    await router.publish(alias.alias, {})
    await router.publish(alias.alias.lower(), {})
    assert heard == [alias.canonical] * 2


async def test_a_tournament_is_no_verdict_and_a_failed_promotion_no_promotion():
    router, heard = get_router(), []
    for name in ("EVALUATION_COMPLETED", "MODEL_PROMOTED", "PBT_GENERATION_COMPLETE"):
        router.subscribe(name, lambda event: heard.append(event.event_type))
    await router.publish("SHADOW_TOURNAMENT_COMPLETE", {})
    await router.publish("PROMOTION_COMPLETE", {"success": False})
    await router.publish("TIER_GATING_COMPLETE", {"passed": False})
    await router.publish("PBT_COMPLETED", {})
    assert heard == []
