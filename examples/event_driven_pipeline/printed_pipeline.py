"""The documents' API reference, "Example: Event-Driven Pipeline", as it is printed there."""
# ruff: noqa: I001 - as printed
# fmt: off

from app.coordination.event_router import get_router, RouterEvent

async def setup_pipeline():
    router = get_router()

    # Stage 1: On sync complete, trigger export
    async def on_sync_complete(event: RouterEvent):
        games_synced = event.payload.get("games_synced", 0)
        if games_synced > 100:
            await router.publish(
                "EXPORT_TRIGGERED",
                payload={"threshold_met": True},
                source="pipeline"
            )

    # Stage 2: On export complete, trigger training
    async def on_export_complete(event: RouterEvent):
        samples = event.payload.get("samples_exported", 0)
        if samples > 10000:
            await router.publish(
                "TRAINING_TRIGGERED",
                payload={"samples": samples},
                source="pipeline"
            )

    router.subscribe("DATA_SYNC_COMPLETED", on_sync_complete)
    router.subscribe("NPZ_EXPORT_COMPLETED", on_export_complete)
