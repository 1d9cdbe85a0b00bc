"""Folders and files for their owner alone, whatever the umask, new ones and those that were there."""

import os
import stat

import pytest

from ringrift.engine.lock_files import LockFile
from ringrift.engine.opening import close_data_folder, open_engine
from ringrift.errors import ConfigError, Corrupt
from ringrift.files import close_to_others, make_private_folder, open_private, private_umask, secret_in
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder):
    """Everything in *folder* that somebody else could open, the folder included."""
    return [path for path in (folder, *folder.rglob("*")) if mode(path) & 0o077 and not path.is_symlink()]


def settings_of(data, **more):
    return load_settings({"RINGRIFT_DATA_DIR": str(data), **more}).settings


async def test_a_new_data_folder_is_its_owners_alone(tmp_path):
    engine = await open_engine(settings_of(tmp_path / "deep" / "data"), SystemRuntime())
    await engine.kv.put("key", b"value")
    assert open_to_others(tmp_path / "deep") == []
    await engine.close()


async def test_a_folder_that_was_open_is_closed_and_goes_on(tmp_path):
    data = tmp_path / "data"
    engine = await open_engine(settings_of(data), SystemRuntime())
    await engine.kv.put("key", b"value")
    await engine.close()
    (data / "logs").mkdir()
    (data / "logs" / "control.log").write_text("x")
    (data / "http_token").write_text("t" * 64)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    engine = await open_engine(settings_of(data), SystemRuntime())
    assert (await engine.kv.get("key")).value == b"value"
    assert mode(data) == 0o700, "nobody else gets any further"
    assert open_to_others(data / "coordination") == []
    assert open_to_others(data / "logs") == []
    assert mode(data / "http_token") == 0o600
    await engine.close()


async def test_a_database_elsewhere_is_closed_and_its_folder_left_as_it_is(tmp_path):
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    neighbor = elsewhere / "letter.txt"
    neighbor.write_text("x")
    settings = settings_of(tmp_path / "data", RINGRIFT_COORDINATOR_DB=str(elsewhere / "c.db"))
    engine = await open_engine(settings, SystemRuntime())
    await engine.kv.put("key", b"value")
    assert [path.name for path in open_to_others(elsewhere)] == ["mine", "letter.txt"]
    await engine.close()


def test_a_lock_that_was_open_to_others_is_closed(tmp_path):
    path = tmp_path / "lock"
    path.write_text("")
    path.chmod(0o666)
    LockFile(path).close()
    assert mode(path) == 0o600


def test_a_folder_that_its_owner_shares_keeps_the_rights_of_its_group(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o2775)
    make_private_folder(data / "a" / "b")
    os.close(open_private(data / "a" / "b" / "file", os.O_RDWR | os.O_CREAT))
    assert close_to_others((data,)) == [data]
    assert [mode(data), mode(data / "a"), mode(data / "a" / "b")] == [0o2770] * 3
    assert mode(data / "a" / "b" / "file") == 0o660
    assert (private_umask(data), private_umask(tmp_path)) == (0o007, 0o077)


def test_everybodys_folders_and_links_are_left_alone(tmp_path):
    public, target = tmp_path / "tmp", tmp_path / "target"
    public.mkdir()
    public.chmod(0o1777)
    target.write_text("x")
    target.chmod(0o644)
    (tmp_path / "link").symlink_to(target)
    assert close_to_others((public, tmp_path / "link", tmp_path / "missing")) == []
    assert (mode(public), mode(target)) == (0o1777, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_or_a_secret_of_another_user_is_refused(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        close_data_folder(settings_of(data))
    os.chown(data, 0, 0)
    (data / "http_token").write_text("planted by somebody who knows it")
    os.chown(data / "http_token", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        secret_in(data / "http_token")


def test_a_secret_is_made_once(tmp_path):
    path = tmp_path / "new" / "secret"
    made = secret_in(path)
    assert (len(made), secret_in(path), mode(path), mode(path.parent)) == (64, made, 0o600, 0o700)
    path.write_text("short")
    with pytest.raises(Corrupt, match="fewer than"):
        secret_in(path)
