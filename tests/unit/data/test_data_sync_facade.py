"""What a caller of the sync facade sees. Bytes really move between the stores of the nodes of one process."""

import asyncio

import pytest
from guards_world import DirectTransfers, World, nodes

from ringrift.coordination.sync_base import get_data_plane
from ringrift.coordination.sync_coordinator import SyncBackend, SyncFacade, SyncRequest, get_sync_facade, sync
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.config import AutoSyncConfig, DataNode
from ringrift.data.manifest.store import DiskState, DiskStates
from ringrift.data.sync.cluster_view import NodeReportCollector, SyncHistory
from ringrift.data.transfer.contract import Moved, NodeUnreachable, TransferRefused
from ringrift.engine.opening import close_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import ConfigError, StorageFull
from ringrift.status import CoordinatorStatus
from ringrift.work.job.protocol import JobArtifact, JobReport


class WatchedTransfers(DirectTransfers):
    """Notes how it is called, and fails or hangs as told."""

    def __init__(self, world, plane):
        super().__init__(world, plane)
        self.calls, self.refuse, self.hang, self.drop = [], {}, set(), set()

    async def send(self, node, artifacts, **terms):
        self.calls.append((node.name, tuple(a.digest for a in artifacts), terms))
        if node.name in self.hang:
            await asyncio.Event().wait()
        if self.refuse.get(node.name, 0) > 0:
            self.refuse[node.name] -= 1
            return Moved(failed=tuple((a.digest, "the line broke") for a in artifacts))
        if node.name in self.drop:
            return Moved(bytes_sent=7)
        there = [a for a in artifacts if await self._world.planes[node.name].blobs.has(a.digest)]
        moved = await super().send(node, [a for a in artifacts if a not in there])
        known = tuple(self._world.receipt(a, node.name) for a in there)
        return Moved(
            receipts=moved.receipts, failed=moved.failed, bytes_sent=moved.bytes_sent, already_there=known
        )


class SilentNodes(WatchedTransfers):
    """Nodes that take their time and then say nothing, to whoever sends or fetches."""

    def __init__(self, world, plane, *silent):
        super().__init__(world, plane)
        self._silent, self.asked = silent, []

    async def send(self, node, artifacts, **terms):
        self._wait_for(node)
        return await super().send(node, artifacts, **terms)

    async def fetch(self, node, artifacts, **terms):
        self._wait_for(node)
        return await super().fetch(node, artifacts, **terms)

    def _wait_for(self, node):
        self.asked.append(node.name)
        if node.name in self._silent:
            self._world.runtime.advance(60.0)
            raise NodeUnreachable(node.name, attempts=(("http", "nothing moved"),), retry_after_s=1.0)


def world_with_silent(*silent, among):
    world = world_of(*among)
    plane = world.planes[among[0].name]
    plane._transfers = SilentNodes(world, plane, *silent)
    return world


def world_of(*given):
    world = World(*given)
    plane = world.planes[given[0].name]
    plane._transfers = WatchedTransfers(world, plane)
    return world


def facade_of(world, name="a", **config):
    return SyncFacade(
        world.planes[name],
        router=world.router,
        config=AutoSyncConfig(**config),
        reports=NodeReportCollector(),
    )


# --- one machine --------------------------------------------------------------------------------------


async def test_on_the_only_node_a_sync_succeeds_and_says_why_nothing_moved():
    response = await sync("games")
    assert response.success
    assert (response.nodes_synced, response.bytes_transferred, response.errors) == (0, 0, [])
    assert response.details["notes"] == ["this is the only node; there is nowhere to bring anything"]
    assert get_data_plane().nodes.others() == ()
    await close_engine()


async def test_nodes_that_nobody_knows_are_refused_by_name():
    response = await sync("models", targets=["node-1", "node-2"])
    assert not response.success
    assert response.errors == ["node-1: no node is called that", "node-2: no node is called that"]
    await close_engine()


@pytest.mark.parametrize("silent", [(), ("b",)], ids=["alive", "dead"])
@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_named_node_that_was_asked_nothing_is_no_success(silent, confirmed):
    world = world_with_silent(*silent, among=nodes("a", "b"))
    response = await facade_of(world).sync("models", targets=["b"], require_confirmation=confirmed)
    assert not response.success
    assert response.errors == ["b: nothing was brought or confirmed: the manifest knows of no models"]
    assert response.details["up_to_date"] == []
    assert response.details["not_known"] == ["b"]
    (failed,) = world.heard("DATA_SYNC_FAILED")
    assert failed["error"] == response.errors[0]


async def test_where_nothing_is_known_no_node_is_called_up_to_date():
    world = world_with_silent("b", among=nodes("a", "b"))
    for asked in ({}, {"source_node": "b"}):
        response = await facade_of(world).sync("models", **asked)
        assert response.success
        assert response.details["up_to_date"] == []
        assert response.details["not_known"] == ["b"]


async def test_a_dead_node_confirms_nothing():
    world = world_with_silent("b", among=nodes("a", "b"))
    await world.make(b"one", "a", "b", kind=ArtifactKind.MODEL)
    response = await facade_of(world).sync("models", targets=["b"], require_confirmation=True)
    assert not response.success
    assert response.nodes_synced == 0
    assert any("b cannot be reached" in error for error in response.errors)
    assert list(response.details["not_confirmed"]) == ["b"]


async def test_a_source_of_which_nothing_is_known_is_no_confirmed_success():
    world = world_of(*nodes("a", "b"))
    response = await facade_of(world).sync("games", source_node="b", require_confirmation=True)
    assert not response.success
    assert "knows of no such file on b" in response.errors[0]


async def test_what_a_job_sealed_a_moment_ago_goes_without_waiting_for_the_daemon():
    world = world_of(*nodes("a", "b"))
    plane = world.planes["a"]
    await plane.queue.add([NewWork(kind="train", id="one", payload={"config": "hex8_2p"})])
    (claim,) = await plane.queue.claim(Claimant(worker="w", node="a"), lease_s=60)
    digest = await plane.blobs.put_bytes(b"weights")
    sealed = JobArtifact(name="one", kind="model", digest=digest, size_bytes=7)
    report = JobReport(
        status="done", worker="w", node="a", started_s=0.0, wall_s=1.0, cpu_s=1.0, artifacts=(sealed,)
    )
    await plane.queue.complete(claim.id, token=claim.token, result=report.as_result())
    response = await facade_of(world).sync("models", targets=["b"], require_confirmation=True)
    assert response.success
    assert response.details["digests_moved"] == [digest]
    assert await world.planes["b"].blobs.has(digest)


async def test_a_request_waits_for_the_lock_of_its_host_and_says_who_holds_it():
    world = world_of(*nodes("a", "b"))
    made = await world.make(b"one", "a")
    somebody = SyncMutex(kv=world.planes["a"].kv, runtime=world.runtime)
    assert await somebody.acquire_async("b", "maintenance", timeout=1000)

    async def time_passes():
        while True:
            await asyncio.sleep(0.01)
            world.runtime.advance(1.0)

    passing = asyncio.ensure_future(time_passes())
    refused = await facade_of(world).sync("games", targets=["b"], timeout_seconds=8)
    passing.cancel()
    assert not refused.success
    assert any("held by process" in error and "'maintenance'" in error for error in refused.errors)
    asking = asyncio.ensure_future(facade_of(world).sync("games", targets=["b"], timeout_seconds=60))
    await asyncio.sleep(0.05)
    assert not asking.done()
    assert await somebody.release_async("b")
    assert (await asking).success
    assert await world.holders(made) == {"a", "b"}


# --- counts come from receipts ------------------------------------------------------------------------


async def test_counts_are_those_of_the_receivers():
    world = world_of(*nodes("a", "b", "c"))
    await world.make(b"one", "a", games=10, config="hex8_2p")
    await world.make(b"other", "a", "b", games=5, config="hex8_2p")
    response = await facade_of(world).sync("games")
    assert response.success
    assert response.backend_used is SyncBackend.AUTO_SYNC
    assert response.nodes_synced == 2
    assert response.bytes_transferred == 3 + 3 + 5
    assert response.details["files_moved"] == 3
    assert response.details["games_synced"] == 15, "a game that went to two nodes is one game"
    again = await facade_of(world).sync("games")
    assert again.success
    assert (again.nodes_synced, again.bytes_transferred) == (0, 0)
    assert again.details["up_to_date"] == ["b", "c"]


async def test_a_transfer_without_receipts_is_no_success():
    world = world_of(*nodes("a", "b"))
    await world.make(b"one", "a", games=10)
    world.planes["a"].transfers.drop = {"b"}
    response = await facade_of(world).sync("games")
    assert not response.success
    assert (response.nodes_synced, response.details["games_synced"]) == (0, 0)
    assert all("no receipt came back" in error for error in response.errors)


async def test_a_receipt_of_another_node_proves_nothing():
    world = world_of(*nodes("a", "b", "c"))
    made = await world.make(b"one", "a", games=10)

    class Liar(DirectTransfers):
        async def send(self, node, artifacts, **terms):
            return Moved(receipts=(self._world.receipt(made, "c"),), bytes_sent=3)

    world.planes["a"]._transfers = Liar(world, world.planes["a"])
    response = await facade_of(world).sync("games", targets=["b"])
    assert not response.success
    assert response.nodes_synced == 0


# --- every field of a request -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"data_type": "pictures"}, "data_type"),
        ({"data_type": "games", "priority": "urgent"}, "priority"),
        ({"data_type": "games", "timeout_seconds": 0}, "timeout_seconds"),
        ({"data_type": "games", "bandwidth_limit_mbps": -1}, "bandwidth_limit_mbps"),
        ({"data_type": "games", "num_players": 7}, "num_players"),
        ({"data_type": "games", "targets": "node-1"}, "targets"),
        ({"data_type": "games", "targets": ["b"], "exclude_nodes": ["b"]}, "exclude_nodes"),
        ({"data_type": "games", "speed": 3}, "speed"),
        ({"priority": "high"}, "data_type"),
    ],
)
async def test_what_cannot_be_honored_is_refused_by_name(fields, named):
    world = world_of(*nodes("a", "b"))
    with pytest.raises(ConfigError, match=named):
        await facade_of(world).sync(fields)
    assert world.planes["a"].transfers.calls == []


async def test_targets_and_exclusions_are_kept():
    world = world_of(*nodes("a", "b", "c", "d"))
    await world.make(b"one", "a")
    await facade_of(world).sync("games", targets=["c"])
    assert [call[0] for call in world.planes["a"].transfers.calls] == ["c"]
    await facade_of(world).sync("games", exclude_nodes=["d"])
    assert {call[0] for call in world.planes["a"].transfers.calls} == {"b", "c"}


async def test_only_the_type_and_config_that_is_asked_for_moves():
    world = world_of(*nodes("a", "b"))
    wanted = await world.make(b"hex2", "a", config="hex8_2p")
    await world.make(b"hex3", "a", config="hex8_3p")
    await world.make(b"square", "a", config="square8_2p")
    await world.make(b"net", "a", config="hex8_2p", kind=ArtifactKind.MODEL)
    await facade_of(world).sync("games", board_type="hex8", num_players=2)
    assert [call[1] for call in world.planes["a"].transfers.calls] == [(wanted.digest,)]


async def test_priority_and_bandwidth_reach_the_line_in_bytes():
    world = world_of(*nodes("a", "b", "c"))
    await world.make(b"one", "a")
    await facade_of(world).sync("games", priority="low", bandwidth_limit_mbps=8)
    terms = [call[2] for call in world.planes["a"].transfers.calls]
    assert [each["priority"] for each in terms] == ["low", "low"]
    assert sum(each["limit_bytes_per_s"] for each in terms) == 1_000_000, "8 Mbit/s for the whole request"


async def test_a_request_ends_at_its_timeout_and_keeps_what_arrived():
    world = world_of(*nodes("a", "b", "c"))
    await world.make(b"one", "a", games=4)
    world.planes["a"].transfers.hang = {"c"}
    response = await facade_of(world).sync("games", timeout_seconds=2)
    assert not response.success
    assert response.errors == ["auto_sync: timed out after 2 s"]
    assert response.details["nodes"] == ["b"]
    assert response.details["games_synced"] == 4
    plane = world.planes["a"]
    hosts = await SyncHistory(plane.kv, plane.runtime).hosts()
    assert hosts["b"].last_success_s is not None
    assert (hosts["c"].last_success_s, hosts["c"].failures_24h) == (None, 1), "a failed sync is no sync"


async def test_confirmation_asks_each_receiver_again():
    world = world_of(*nodes("a", "b"))
    made = await world.make(b"one", "a", "b")
    facade = facade_of(world)
    silent = await facade.sync("games")
    assert world.planes["a"].transfers.calls == []
    assert silent.nodes_synced == 0
    confirmed = await facade.sync("games", require_confirmation=True)
    assert confirmed.success
    assert confirmed.nodes_synced == 1
    assert confirmed.details["files_confirmed"] == 1
    assert confirmed.bytes_transferred == 0
    # The manifest says that b has it, and it has not: only asking finds that out.
    await world.planes["b"].blobs.delete(made.digest)
    brought = await facade.sync("games", require_confirmation=True)
    assert brought.details["files_moved"] == 1
    assert await world.holders(made) == {"a", "b"}


async def test_ephemeral_requests_go_to_nodes_that_stay():
    world = world_of(*nodes("a", "b"), DataNode(name="v", ephemeral=True))
    await world.make(b"one", "a")
    response = await facade_of(world).sync("games", prefer_ephemeral=True)
    assert response.backend_used is SyncBackend.EPHEMERAL
    assert response.details["nodes"] == ["b"]


# --- backends and their chains ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({}, SyncBackend.AUTO_SYNC),
        ({"targets": ["all"]}, SyncBackend.AUTO_SYNC),
        ({"targets": ["b"]}, SyncBackend.ROUTER),
        ({"targets": ["b"], "priority": "high"}, SyncBackend.CLUSTER_SYNC),
        ({"priority": "critical"}, SyncBackend.CLUSTER_SYNC),
        ({"priority": "critical", "prefer_ephemeral": True}, SyncBackend.EPHEMERAL),
    ],
)
async def test_the_backend_follows_from_the_request(fields, backend):
    world = world_of(*nodes("a", "b"))
    await world.make(b"one", "a")
    response = await facade_of(world).sync(SyncRequest("games", **fields))
    assert response.success
    assert response.backend_used is backend
    assert response.nodes_synced == 1


async def test_what_one_backend_could_not_bring_the_next_does_and_the_request_counts_once():
    world = world_of(*nodes("a", "b", "c"))
    await world.make(b"one", "a", games=4)
    world.planes["a"].transfers.refuse = {"c": 1}
    facade = facade_of(world)
    response = await facade.sync("games")
    assert response.success
    assert response.backend_used is SyncBackend.ROUTER
    assert response.details["recovered_from"] == [
        e for e in response.details["recovered_from"] if e.startswith("auto_sync: c:")
    ]
    assert response.details["games_synced"] == 4
    sent_to = [call[0] for call in world.planes["a"].transfers.calls]
    assert sent_to == ["b", "c", "c"], "what had arrived at b is not sent again"
    assert facade.get_stats() == {
        "total_syncs": 1,
        "by_backend": {"router": 1},
        "total_bytes": 6,
        "total_errors": 0,
    }


@pytest.mark.parametrize(("waited_s", "asked"), [(0.1, 3), (60.0, 1)])
async def test_a_node_that_says_nothing_is_waited_for_once_in_a_request(waited_s, asked):
    """One that refuses does so at once, and each backend may ask it."""

    class Silence(WatchedTransfers):
        async def send(self, node, artifacts, **terms):
            if node.name != "c":
                return await super().send(node, artifacts, **terms)
            self.calls.append((node.name,))
            self._world.runtime.advance(waited_s)
            raise NodeUnreachable("c", attempts=(("http", "nothing moved"),), retry_after_s=1.0)

    world = world_of(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    plane._transfers = Silence(world, plane)
    await world.make(b"one", "a", games=4)
    response = await facade_of(world).sync("games")
    assert not response.success
    assert response.details["nodes"] == ["b"]
    assert "c cannot be reached (http: nothing moved)" in response.errors[0]
    assert [call[0] for call in plane.transfers.calls].count("c") == asked


@pytest.mark.parametrize(
    "error",
    [
        TransferRefused("c", reason="no slot came free", retry_after_s=30.0),
        StorageFull("the disk of c is full", retry_after_s=60.0),
    ],
)
async def test_a_node_that_another_error_kept_waiting_is_not_silent(error):
    class Late(WatchedTransfers):
        async def send(self, node, artifacts, **terms):
            self._world.runtime.advance(60.0)
            if not self.calls:
                self.calls.append((node.name,))
                raise error
            return await super().send(node, artifacts, **terms)

    world = world_of(*nodes("a", "c"))
    plane = world.planes["a"]
    plane._transfers = Late(world, plane)
    made = await world.make(b"one", "a")
    assert (await facade_of(world).sync("games")).success
    assert await world.holders(made) == {"a", "c"}


async def test_a_wall_clock_that_jumps_makes_no_node_silent(monkeypatch):
    class AtOnce(WatchedTransfers):
        async def send(self, node, artifacts, **terms):
            self.calls.append((node.name,))
            ahead_s = runtime.now_s() + 3600.0
            monkeypatch.setattr(runtime, "now_s", lambda: ahead_s)
            raise NodeUnreachable("b", attempts=(("http", "refused"),), retry_after_s=1.0)

    world = world_of(*nodes("a", "b"))
    plane, runtime = world.planes["a"], world.runtime
    plane._transfers = AtOnce(world, plane)
    await world.make(b"one", "a")
    await facade_of(world).sync("games")
    assert len(plane.transfers.calls) == 3


async def test_what_only_a_silent_node_has_is_not_asked_of_the_others():
    world = world_with_silent("c", among=nodes("a", "b", "c"))
    await world.make(b"ours", "a", games=4)
    theirs = await world.make(b"theirs", "c", games=2)
    response = await facade_of(world).sync("games")
    assert not response.success
    assert response.details["nodes"] == ["b"]
    assert [error for error in response.errors if " c: " not in error] == []
    assert world.planes["a"].transfers.asked.count("c") == 1
    assert await world.holders(theirs) == {"c"}


async def test_what_a_silent_node_has_is_relayed_from_another_that_has_it():
    same = {"provider": "x"}  # which makes c the better source
    among = (DataNode(name="a", **same), *nodes("b"), DataNode(name="c", **same), *nodes("d"))
    world = world_with_silent("c", among=among)
    await world.make(b"ours", "a")
    theirs = await world.make(b"theirs", "c", "d")
    response = await facade_of(world).sync("games")
    assert not response.success, "c did not get ours"
    assert response.details["nodes"] == ["b", "d"]
    assert await world.holders(theirs) == {"a", "b", "c", "d"}


async def test_this_node_gets_from_another_what_a_silent_one_did_not_give():
    same = {"provider": "x"}
    among = (DataNode(name="a", **same), DataNode(name="c", **same), *nodes("d"))
    world = world_with_silent("c", among=among)
    made = await world.make(b"theirs", "c", "d")
    response = await facade_of(world).sync("games", targets=["a"])
    assert response.success
    assert world.planes["a"].transfers.asked == ["c", "d"]
    assert await world.holders(made) == {"a", "c", "d"}


async def test_what_could_not_be_relayed_is_no_success_because_later_backends_do_not_relay():
    world = world_with_silent("c", among=nodes("a", "b", "c"))
    await world.make(b"theirs", "c")
    response = await facade_of(world).sync("games", targets=["b"])
    assert not response.success
    assert "c cannot be reached" in response.errors[0]
    assert world.planes["a"].transfers.asked == ["c"]


async def test_a_silent_source_is_waited_for_once():
    world = world_with_silent("b", among=nodes("a", "b"))
    await world.make(b"theirs", "b")
    response = await facade_of(world).sync("games", source_node="b")
    assert not response.success
    assert world.planes["a"].transfers.asked == ["b"]


async def test_when_every_backend_fails_all_of_them_are_named():
    world = world_of(*nodes("a", "b"))
    await world.make(b"one", "a")
    world.planes["a"].transfers.refuse = {"b": 9}
    facade = facade_of(world)
    response = await facade.sync("games")
    assert not response.success
    assert response.backend_used is SyncBackend.AUTO_SYNC
    assert [error.split(":")[0] for error in response.errors] == ["auto_sync", "router", "distributed"]
    assert facade.get_stats()["total_errors"] == 1


async def test_the_router_fetches_what_only_others_have_and_sends_it_on():
    world = world_of(*nodes("a", "b", "c"))
    made = await world.make(b"one", "b")
    response = await facade_of(world).sync("games", targets=["c"])
    assert response.success
    assert await world.holders(made) == {"a", "b", "c"}


async def test_a_named_node_gets_what_it_deleted_and_an_unnamed_one_does_not():
    world = world_of(*nodes("a", "b"))
    made = await world.make(b"one", "a")
    facade = facade_of(world)
    await world.planes["a"].kv.put(
        f"data/tombstones/{made.digest}",
        b'{"digest":"%s","nodes":{"b":{"state":"deleted","at_s":1,"reason":"room","by":"disk","copies_left":2}}}'
        % made.digest.encode(),
    )
    await facade.sync("games")
    assert await world.holders(made) == {"a"}
    await facade.sync("games", targets=["b"])
    assert await world.holders(made) == {"a", "b"}


# --- who is served ------------------------------------------------------------------------------------


async def test_a_node_that_takes_no_games_is_left_out_and_named_when_asked_for():
    world = world_of(*nodes("a"), DataNode(name="m", receives=("models",)))
    await world.make(b"one", "a")
    facade = facade_of(world)
    everyone = await facade.sync("games")
    assert everyone.success
    assert everyone.details["notes"] == ["no other node takes games: m: it does not receive games"]
    named = await facade.sync("games", targets=["m"])
    assert not named.success
    assert named.errors == ["m: it does not receive games"]


async def test_nodes_of_one_share_need_no_copies_of_each_other():
    world = world_of(*nodes("a", "b", nfs="lake"))
    await world.make(b"one", "a")
    response = await facade_of(world).sync("games")
    assert response.success
    assert world.planes["a"].transfers.calls == []


async def test_a_full_disk_blocks_and_is_said():
    world = world_of(*nodes("a", "b"))
    await world.make(b"one", "a")
    full = DiskState(
        node="b", used_percent=71.0, free_bytes=29, total_bytes=100, level="", writes_blocked=False, at_s=1.0
    )
    await DiskStates(world.planes["a"].kv).tell(full)
    response = await facade_of(world).sync("games")
    assert not response.success
    assert response.errors == ["b: its disk is 71 % full, the limit is 70 %"]


async def test_a_host_both_excluded_and_favored_is_refused():
    with pytest.raises(ConfigError, match="'b'"):
        AutoSyncConfig(excluded_hosts=("b",), priority_hosts=("b",))
    world = world_of(*nodes("a", "b"))
    with pytest.raises(ConfigError, match="excluded_hosts"):
        AutoSyncConfig(excluded_hosts=("bee",)).check_nodes(world.planes["a"].nodes)


# --- priority sync ------------------------------------------------------------------------------------


async def test_orphans_of_another_node_come_here_and_are_counted_by_receipts():
    world = world_of(*nodes("a", "b"))
    await world.make(b"one", "b", games=12, config="hex8_2p")
    await world.make(b"two", "b", games=3, config="square8_2p")
    facade = facade_of(world)
    response = await facade.trigger_priority_sync("orphan_games_recovery", "b", "hex8_2p", data_type="games")
    assert response.success
    assert response.nodes_synced == 1
    await asyncio.sleep(0)
    assert world.heard("ORPHAN_GAMES_REGISTERED")[0]["games_recovered"] == 12
    assert world.heard("PRIORITY_SYNC_COMPLETED")[0]["games_synced"] == 12
    assert world.heard("DATA_SYNC_COMPLETED")[0]["games_synced"] == 12


async def test_a_priority_sync_of_an_unknown_node_fails_by_name_and_is_told():
    world = world_of(*nodes("a", "b"))
    response = await facade_of(world).trigger_priority_sync("orphan_games_recovery", "vast-12345", "hex8_2p")
    assert not response.success
    assert response.errors == ["vast-12345: no node is called that"]
    assert world.heard("PRIORITY_SYNC_FAILED")
    assert world.heard("ORPHAN_GAMES_REGISTERED") == []


# --- health -------------------------------------------------------------------------------------------


async def test_health_follows_the_share_of_failed_requests():
    world = world_of(*nodes("a", "b"))
    facade = facade_of(world)
    assert facade.health_check().status is CoordinatorStatus.RUNNING
    await facade.sync("games")
    health = facade.health_check()
    assert health.status is CoordinatorStatus.RUNNING, "a facade in use is not degraded"
    assert health.details["backends_loaded"] == 1
    await facade.sync("games", targets=["nobody"])
    await facade.sync("games")
    assert facade.health_check().status is CoordinatorStatus.DEGRADED
    for _ in range(3):
        await facade.sync("games", targets=["nobody"])
    health = facade.health_check()
    assert not health.healthy
    assert health.status is CoordinatorStatus.STOPPED
    assert health.details["operations_count"] == 6
    for _ in range(100):
        await facade.sync("games")
    assert facade.health_check().status is CoordinatorStatus.RUNNING, "trouble that is over is over"


def test_there_is_one_facade():
    assert SyncFacade.get_instance() is get_sync_facade()


async def test_a_node_that_files_only_came_from_is_not_counted_as_synced():
    world = world_of(*nodes("a", "b", "c"))
    await world.make(b"one", "b", games=3)
    response = await facade_of(world).sync("games", targets=["c"])
    assert response.details["nodes"] == ["c"]
    assert response.nodes_synced == 1


async def test_this_node_may_be_a_target_too():
    world = world_of(*nodes("a", "b"))
    made = await world.make(b"one", "b", games=3)
    response = await facade_of(world).sync("games", targets=["a"])
    assert response.success
    assert response.details["nodes"] == ["a"]
    assert await world.holders(made) == {"a", "b"}
