"""How far a sync is, and when it will be done."""

from guards_world import DirectTransfers, World, nodes

from ringrift.coordination.sync_facade import SyncFacade
from ringrift.data.config import AutoSyncConfig
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.sync.executor import SyncProgress
from ringrift.data.sync.plan import NodeTransfer, SyncPlan
from ringrift.data.transfer.contract import TransferProgress
from ringrift.testing.simulation import ManualRuntime


class SlowTransfers(DirectTransfers):
    """Tells of half the bytes after ten seconds, and lets the test look."""

    look = None

    async def send(self, node, artifacts, *, terms, **options):
        size = sum(each.size for each in artifacts)
        self._world.runtime.advance(10.0)
        await terms.on_progress(
            TransferProgress(bytes_done=size // 2, bytes_total=size, files_done=0, files_total=1)
        )
        SlowTransfers.look()
        return await super().send(node, artifacts, **options)


async def test_a_request_under_way_tells_percent_and_the_time_of_its_end():
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    made = await world.make(b"1234567890", "a")
    plane._transfers = SlowTransfers(world, plane)
    facade = SyncFacade(plane, router=world.router, config=AutoSyncConfig(), reports=NodeReportCollector())
    seen = []
    SlowTransfers.look = lambda: seen.extend(facade.get_progress())
    assert (await facade.sync("games", targets=["b"])).success
    (told,) = seen
    assert (told["percent"], told["bytes_done"], told["bytes_total"]) == (50.0, 5, made.size)
    assert (told["is_active"], told["current_nodes"]) == (True, ["b"])
    assert told["estimated_completion_s"] == world.runtime.now_s() + 10.0
    assert facade.get_progress() == []


async def test_trips_add_up_and_failed_calls_do_not_stop_the_bar():
    world = World(*nodes("a", "b", "c"))
    files = [await world.make(text, "a") for text in (b"one!", b"four")]
    progress = SyncProgress(ManualRuntime())
    node_transfers = [NodeTransfer(node=name, artifacts=tuple(files), reason="test") for name in ("b", "c")]
    progress.begin(SyncPlan(sends=tuple(node_transfers)))
    assert (progress.percent, progress.estimated_completion_s) == (0.0, None)
    progress.call_ended(node_transfers[0], files=2, size=8)
    assert (progress.percent, progress.files_done, progress.files_total) == (50.0, 2, 4)
    progress.call_ended(node_transfers[1], files=2, size=8, error="c does not answer")
    assert (progress.percent, progress.error) == (100.0, "c does not answer")
    progress.end()
    assert not progress.to_dict()["is_active"]
    progress.begin(SyncPlan())
    assert progress.percent == 100.0
