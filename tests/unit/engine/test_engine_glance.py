"""One value read beside the engine is the one that the engine has."""

import pytest

from ringrift.engine.opening import open_engine
from ringrift.engine.sqlite.direct_reads import read_committed
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import Corrupt, ForeignFile
from ringrift.settings import load_settings
from ringrift.testing.engine_contract import ShiftedRuntime


@pytest.fixture
def settings(tmp_path):
    return load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings


async def test_it_sees_what_is_committed_while_the_engine_is_open_and_after(settings):
    runtime, config = ShiftedRuntime(), SqliteConfig.from_settings(settings)
    engine = await open_engine(settings, runtime)
    await engine.kv.put("a", b"1")
    await engine.kv.put("short", b"2", ttl_s=60.0)
    await engine.kv.put("shorter", b"2", ttl_s=1e-6)
    await engine.kv.put("gone", b"3")
    await engine.kv.delete("gone")
    assert read_committed(config, "a").value == b"1"
    assert read_committed(config, "short").value == b"2"
    assert read_committed(config, "shorter").value is None
    assert read_committed(config, "gone").value is None
    assert read_committed(config, "never").value is None
    assert read_committed(config, "a").now_s == pytest.approx(runtime.now_s(), abs=60.0)
    await engine.kv.put("a", b"4")
    assert read_committed(config, "a").value == b"4"
    await engine.close()
    assert read_committed(config, "a").value == b"4"


@pytest.mark.parametrize(("content", "error"), [(b"", Corrupt), (b"a letter" * 600, ForeignFile)])
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_was(settings, content, error):
    settings.coordinator_db.parent.mkdir(parents=True)
    settings.coordinator_db.write_bytes(content)
    with pytest.raises(error):
        read_committed(SqliteConfig.from_settings(settings), "a")
    assert settings.coordinator_db.read_bytes() == content
    assert [path.name for path in settings.coordinator_db.parent.iterdir()] == [settings.coordinator_db.name]
