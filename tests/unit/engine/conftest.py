import asyncio

import pytest

from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.testing.engine_contract import ShiftedRuntime


@pytest.fixture
def runtime():
    return ShiftedRuntime()


@pytest.fixture
def config(tmp_path):
    return SqliteConfig(database=tmp_path / "engine" / "c.db", blob_dir=tmp_path / "blobs", upkeep_s=1e9)


@pytest.fixture
async def opened(runtime):
    """Open engines that are closed at the end of the test."""
    engines = []

    async def open_one(config, **options):
        engines.append(await asyncio.to_thread(open_sqlite, config, runtime, **options))
        return engines[-1]

    yield open_one
    for engine in engines:
        await engine.close()
