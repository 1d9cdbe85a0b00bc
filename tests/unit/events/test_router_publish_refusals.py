"""What no other process could read is refused where it is published, not skipped where it arrives."""

import pytest

from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter


@pytest.mark.parametrize("source", [["x"], 5, True, 1.5, {}, ("x",), {"x"}, b"x"])
async def test_a_source_that_is_no_text_is_refused(source):
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    with pytest.raises(ConfigError, match="source of an event"):
        await router.publish("TRAINING_COMPLETED", {"config": "hex8_2p"}, source)


@pytest.mark.parametrize("payload", [["x"], 5, "text", b"x", {"x"}])
async def test_a_payload_that_is_no_table_is_refused(payload):
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    with pytest.raises(ConfigError, match="payload of an event"):
        await router.publish("TRAINING_COMPLETED", payload, "trainer")


async def test_a_type_that_has_no_text_is_refused():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    with pytest.raises(ConfigError):
        await router.publish(10**5000, {}, "trainer")
