import pytest
from worker_world import WorkerWorld

from ringrift.testing.simulation import simulate


@pytest.fixture
def world(tmp_path):
    """Run a scenario in a world of its own."""

    def run(scenario, **config):
        async def main():
            async with WorkerWorld(tmp_path, **config) as here:
                await scenario(here)

        simulate(main(), limit_s=50_000)

    return run
