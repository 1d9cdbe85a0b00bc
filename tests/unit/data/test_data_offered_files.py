"""A path in an event is no read of any file: folders are named in the settings, and a file counts once."""

import os
import struct
import sys
from dataclasses import replace

import pytest
from guards_world import World, nodes

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.kv_records import DecisionLog
from ringrift.data.protection.distribution import DistributionDaemon, take_offered
from ringrift.errors import ConfigError, Corrupt
from ringrift.settings import load_settings

WEIGHTS = struct.pack("<Q", 2) + b"{}"


def model(path, content=b"weights"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(WEIGHTS + content)
    return path


def world_with(*folders):
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    plane.settings = replace(plane.settings, intake_folders=folders)
    return world, plane


WATCHING, OPENED = [], []
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if WATCHING and event == "open" else None)


@pytest.mark.parametrize("folders", [(), ("elsewhere",)])
async def test_what_lies_in_no_folder_of_the_settings_is_not_read(tmp_path, folders):
    secret = model(tmp_path / "secret" / "model.safetensors")
    (tmp_path / "elsewhere").mkdir()
    _world, plane = world_with(*(tmp_path / name for name in folders))
    links = tmp_path / "elsewhere" / "link.safetensors"
    links.symlink_to(secret)
    way_out = tmp_path / "elsewhere" / ".." / "secret" / "model.safetensors"
    OPENED.clear()
    WATCHING.append(True)
    for path in (secret, links, way_out, "secret/model.safetensors"):
        with pytest.raises(ConfigError, match="is not read"):
            await take_offered(plane, path, kind=ArtifactKind.MODEL)
    WATCHING.clear()
    assert not [path for path in OPENED if "safetensors" in path]
    assert await plane.manifest.artifacts() == []


async def test_a_file_is_taken_in_once_by_its_hash(tmp_path):
    world, plane = world_with(tmp_path)
    first = await take_offered(plane, model(tmp_path / "one"), kind=ArtifactKind.MODEL, config="hex8_2p")
    world.runtime.advance(100.0)
    before = await plane.kv.entries()
    again = await take_offered(plane, model(tmp_path / "two"), kind=ArtifactKind.MODEL, config="hex8_2p")
    assert again == first
    assert await plane.kv.entries() == before, "nothing was written"
    assert await world.holders(first) == {"a"}
    assert (first.kind, first.config, first.name) == (ArtifactKind.MODEL, "hex8_2p", "one")


async def test_a_file_that_is_not_what_it_is_said_to_be_is_refused_and_not_kept(tmp_path):
    _world, plane = world_with(tmp_path)
    (tmp_path / "passwords").write_text("root:x:0:0")
    with pytest.raises(Corrupt, match="no file of a run"):
        await take_offered(plane, tmp_path / "passwords", kind=ArtifactKind.MODEL)
    with pytest.raises(Corrupt, match="this is model, not"):
        await take_offered(plane, model(tmp_path / "one"), kind=ArtifactKind.GAMES)
    assert await plane.blobs.digests() == []
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Corrupt, match="no plain file"):
        await take_offered(plane, tmp_path / "pipe", kind=ArtifactKind.MODEL)
    with pytest.raises(FileNotFoundError):
        await take_offered(plane, tmp_path / "none", kind=ArtifactKind.MODEL)
    with pytest.raises(ConfigError, match="config"):
        await take_offered(plane, model(tmp_path / "one"), kind=ArtifactKind.MODEL, config="../x")


async def test_a_model_named_by_its_path_reaches_the_nodes_and_a_repetition_changes_nothing(
    tmp_path,
):
    world, plane = world_with(tmp_path / "mine")
    daemon = DistributionDaemon(plane=plane, router=world.router, runtime=world.runtime)
    await daemon.start()
    payload = {
        "model_id": "my model",
        "config_key": "hex8_2p",
        "model_path": str(model(tmp_path / "mine" / "m.safetensors")),
        "required_nodes": 2,
    }
    await world.router.publish("MODEL_UPDATED", payload, "a user")
    await daemon._run_cycle()
    (card,) = await plane.manifest.artifacts()
    assert await world.holders(card) == {"a", "b"}
    before = {entry.key: entry.value for entry in await plane.kv.entries("data/wishes/")}
    moved = len(world.transfers)
    await world.router.publish("MODEL_UPDATED", payload, "a user")
    await daemon._run_cycle()
    assert {entry.key: entry.value for entry in await plane.kv.entries("data/wishes/")} == before
    assert len(world.transfers) == moved
    await world.router.publish("MODEL_UPDATED", payload | {"model_path": "/etc/hostname"}, "a user")
    (refused,) = await DecisionLog(plane.kv, world.runtime, node="a").recent(part="distribution")
    assert "/etc/hostname is not read" in refused.reason
    await daemon.stop()
    await world.router.stop()


def test_folders_are_named_by_full_paths(tmp_path):
    found = load_settings({"RINGRIFT_INTAKE_FOLDERS": f"{tmp_path}/a:{tmp_path}/b"}).settings
    assert found.intake_folders == (tmp_path / "a", tmp_path / "b")
    assert load_settings({}).settings.intake_folders == ()
    with pytest.raises(ConfigError, match="full paths"):
        load_settings({"RINGRIFT_INTAKE_FOLDERS": "here"})
