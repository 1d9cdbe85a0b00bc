"""What the daemons that fill archives do, and that without one nobody does it.

They read real files of a real engine, so this runs in real time: an hour of theirs takes a second.
"""

from contextlib import asynccontextmanager

from lever_world import HOUR_S, Levers

from data_cluster import running_node
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.types import DaemonManagerConfig
from ringrift.data.backup.service import ArchiveBackup
from ringrift.data.config import DataNode
from ringrift.data.plane import DataPlane
from ringrift.engine.opening import SharedEngine, shared_engine
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime

HURRY = 3_600.0


class HurriedRuntime(SystemRuntime):
    """Daemons on it wait much shorter than they think."""

    def monotonic_s(self):
        return HURRY * super().monotonic_s()

    async def sleep(self, seconds):
        await super().sleep(seconds / HURRY)


class ArchivingMachine(Levers):
    """A node with one archive, and the manager of its daemons."""

    def __init__(self, node, archive):
        self.node, self.archive, self.runtime = node, archive, HurriedRuntime()
        config = DaemonManagerConfig(loop_watchdog=False)
        self.manager = DaemonManager(config, runtime=self.runtime, bus=node.router)


@asynccontextmanager
async def machine_with(archive):
    async with running_node("a", get_settings().data_dir, archive) as node:
        process_scope().put(DataPlane, node.plane)
        shared_engine().put(node.plane.engine)
        machine = ArchivingMachine(node, archive)
        try:
            yield machine
        finally:
            await machine.manager.shutdown()
            process_scope().drop(SharedEngine)


async def shows_that_files_are_put_there(machine, name):
    async def cause(number):
        games = await machine.node.make(f"games {number}".encode(), games=number)

        async def is_there():
            return machine.archive.name in await machine.node.holders(games)

        return is_there

    await machine.shows_lever(name, cause, within_s=1.5 * HOUR_S)


async def test_files_are_put_into_a_bucket_only_while_s3_node_sync_runs(s3_bucket):
    async with machine_with(s3_bucket.node()) as machine:
        await shows_that_files_are_put_there(machine, "s3_node_sync")


async def test_files_are_put_on_a_drive_only_while_external_drive_sync_runs(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    async with machine_with(DataNode(name="drive", drive_path=str(folder))) as machine:
        assert await ArchiveBackup(machine.node.plane, machine.archive).prepare()
        await shows_that_files_are_put_there(machine, "external_drive_sync")


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    "external_drive_sync": test_files_are_put_on_a_drive_only_while_external_drive_sync_runs,
    "s3_node_sync": test_files_are_put_into_a_bucket_only_while_s3_node_sync_runs,
}
