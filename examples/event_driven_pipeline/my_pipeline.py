"""The event-driven pipeline of the RingRift documents, with jobs and files of one's own.

`setup_pipeline` is the documents' own. The jobs react to the events that it publishes, and tell of their
files; the run checks and seals the files, and decides by its own sequential test. No job of RingRift's own
runs. README.md says how to start both.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import my_jobs
from app.coordination.event_emitters import emit_selfplay_complete, emit_training_complete
from app.coordination.event_router import RouterEvent, get_router
from printed_pipeline import setup_pipeline

CONFIG = "connect_four_2p"
GAMES = 600
WAIT_S = 120.0


class MyJobs:
    """One round: games, samples, a model, its results. The files lie in a folder that the run may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # events name files by their full path
        self.promoted = asyncio.get_running_loop().create_future()

    def subscribe(self) -> None:
        router = get_router()
        router.subscribe("EXPORT_TRIGGERED", self.export)
        router.subscribe("TRAINING_TRIGGERED", self.train)
        router.subscribe("MODEL_PROMOTED", self.on_promoted)

    async def play(self) -> None:
        games = self.folder / "games.jsonl"
        played = await asyncio.to_thread(my_jobs.selfplay, games, games=GAMES)
        await emit_selfplay_complete(config_key=CONFIG, games_generated=played, db_path=str(games))
        synced = {"config_key": CONFIG, "games_synced": played}
        await get_router().publish("DATA_SYNC_COMPLETED", payload=synced, source="my jobs")

    async def export(self, _event: RouterEvent) -> None:
        samples = self.folder / "samples.npz"
        rows = await asyncio.to_thread(my_jobs.export, self.folder / "games.jsonl", samples)
        exported = {"config_key": CONFIG, "samples_exported": rows, "games_exported": GAMES}
        await get_router().publish(
            "NPZ_EXPORT_COMPLETED", payload={**exported, "output_path": str(samples)}, source="my jobs"
        )

    async def train(self, event: RouterEvent) -> None:
        model = self.folder / "model.safetensors"
        loss = await asyncio.to_thread(my_jobs.train, self.folder / "samples.npz", model)
        samples = event.payload["samples"]
        await emit_training_complete(
            config_key=CONFIG, model_path=str(model), metrics={"loss": loss}, samples_trained=samples
        )
        await self.evaluate(model)

    async def evaluate(self, model: Path) -> None:
        results = self.folder / "results.json"
        await asyncio.to_thread(my_jobs.evaluate, model, results, config=CONFIG)
        told = {"config_key": CONFIG, "model_id": my_jobs.read_model(model)[1], "results_path": str(results)}
        await get_router().publish("EVALUATION_COMPLETED", payload=told, source="my jobs")

    def on_promoted(self, event: RouterEvent) -> None:
        if not self.promoted.done():
            self.promoted.set_result(event.payload)


async def main(folder: Path) -> None:
    jobs = MyJobs(folder)
    await setup_pipeline()
    jobs.subscribe()
    await jobs.play()
    async with asyncio.timeout(WAIT_S):
        promoted = await jobs.promoted
    sys.stdout.write(f"{promoted['model_id']} is the champion of {CONFIG}: {promoted['reason']}\n")
    await get_router().stop()


if __name__ == "__main__":
    files = Path(sys.argv[1])
    files.mkdir(exist_ok=True)
    asyncio.run(main(files))
