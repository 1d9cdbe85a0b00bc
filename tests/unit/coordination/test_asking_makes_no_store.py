"""Whoever asks about data where no run ever was is told that there is none; asking makes no store."""

import pytest
from app.coordination.cluster_transport import ClusterTransport, get_cluster_transport, get_stall_handler
from app.coordination.ephemeral_data_guard import get_ephemeral_guard
from app.coordination.sync_bandwidth import get_bandwidth_manager
from app.coordination.sync_mutex import get_sync_mutex
from app.coordination.sync_router import get_sync_router
from app.coordination.transaction_isolation import get_transaction_isolation
from app.coordination.transfer_verification import get_transfer_verifier
from app.coordination.work_queue import get_work_queue

from ringrift.coordination.cluster_manifest import get_cluster_manifest
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.sync_coordinator import get_sync_scheduler

UNKNOWN = ("rate of verified", "work", "depth")  # of nothing there is none
QUESTIONS = {
    "locks": lambda: get_sync_mutex().get_stats()["active_locks"],
    "lock of a host": lambda: get_sync_mutex().is_locked("two"),
    "bandwidth": lambda: get_bandwidth_manager().get_stats()["active_allocations"],
    "stalls": lambda: get_stall_handler().get_stats()["stalls_detected"],
    "verified": lambda: get_transfer_verifier().get_stats()["transfers_24h"],
    "rate of verified": lambda: get_transfer_verifier().get_stats()["verification_rate"],
    "work": lambda: get_work_queue().get_status()["total_items"],
    "depth": lambda: get_work_queue().get_queue_depth(),
    "transactions": lambda: sum(get_transaction_isolation().get_stats()["by_state"].values()),
    "files": lambda: get_cluster_manifest().get_stats()["artifacts"],
    "file": lambda: get_cluster_manifest().get_artifact("0" * 64) is not None,
    "copies": lambda: len(get_cluster_manifest().get_locations("0" * 64)),
    "held here": lambda: get_cluster_manifest().get_node_inventory().files,
    "old files": lambda: len(get_cluster_manifest().find_stale_data()),
    "targets": lambda: len(get_sync_router().get_sync_targets("games")),
    "advice": lambda: len(get_sync_scheduler().get_recommendations()),
    "cluster": lambda: len(get_sync_scheduler().get_cluster_status().critical_hosts),
    "games at risk": lambda: get_ephemeral_guard().get_status()["total_unsynced_games"],
    "evacuation": lambda: len(get_ephemeral_guard().get_evacuation_candidates()),
    "transport": lambda: not isinstance(get_cluster_transport(), ClusterTransport),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_asking_about_data_makes_no_store(ask):
    folder = get_settings().data_dir
    before = sorted(folder.rglob("*"))
    assert not ask()
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_is_none_and_no_number(name):
    assert QUESTIONS[name]() is None


def test_a_queue_that_was_used_knows_its_numbers():
    work_id = get_work_queue().add_work("export")
    assert get_work_queue().get_queue_depth() == 1
    get_work_queue().cancel_work(work_id)
    assert get_work_queue().get_queue_depth() == 0
