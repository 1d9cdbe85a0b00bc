"""Every class of the documents can be made and used alone: without arguments, or with a path."""

import asyncio
import importlib

import pytest

from ringrift.coordination.cluster_transport import get_stall_handler
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.delivery_ledger import get_delivery_ledger, get_retry_queue
from ringrift.coordination.sync_bandwidth import get_bandwidth_manager
from ringrift.coordination.sync_durability import get_sync_dlq, get_sync_wal
from ringrift.coordination.sync_mutex import get_sync_mutex
from ringrift.coordination.transaction_isolation import get_transaction_isolation
from ringrift.coordination.transfer_verification import get_transfer_verifier
from ringrift.data.transfer.limits import BandwidthLimits
from ringrift.data.transfer.peers import StallConfig, SyncStallHandler
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, ForeignFile

ON_A_STORE = {
    "bandwidth_manager": "BandwidthManager",
    "delivery_ledger": "DeliveryLedger",
    "sync_durability": "SyncWAL",
    "sync_mutex": "SyncMutex",
    "sync_safety": "SyncDeadLetterQueue",
    "sync_stall_handler": "SyncStallHandler",
    "transaction_isolation": "TransactionIsolation",
    "transfer_verification": "TransferVerifier",
}
OTHERS = {
    "auto_sync_daemon": "AutoSyncDaemon",
    "cluster_transport": "ClusterTransport",
    "database_sync_manager": "EloSyncManager",
    "delivery_retry_queue": "RetryQueue",
    "ephemeral_data_guard": "EphemeralDataGuard",
    "sync_bandwidth": "BatchRsync",
    "sync_bloom_filter": "BloomFilter",
    "sync_facade": "SyncFacade",
    "sync_router": "SyncRouter",
}


def documented(module, name):
    return getattr(importlib.import_module(f"app.coordination.{module}"), name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "name"), [*ON_A_STORE.items(), *OTHERS.items()])
def test_it_is_made_without_arguments(module, name):
    assert documented(module, name)() is not None
    asyncio.run(close_engine())


def used(name, made):
    """What one says to it, the other knows of."""
    match name:
        case "BandwidthManager":
            made.request("gpu-1", 10)
            return lambda other: other.get_host_status("gpu-1")["active_transfers"] == 1
        case "DeliveryLedger":
            asyncio.run(made.record_delivery_started("model", "abc", "gpu-1"))
            return lambda other: asyncio.run(other.get("gpu-1/abc")) is not None
        case "SyncWAL":
            entry = asyncio.run(made.append("game", "here", "gpu-1"))
            return lambda other: [each.entry_id for each in asyncio.run(other.recover())] == [entry]
        case "SyncMutex":
            assert made.acquire("gpu-1")
            return lambda other: other.is_locked("gpu-1") and not other.acquire("gpu-1")
        case "SyncDeadLetterQueue":
            return lambda other: asyncio.run(other.unresolved()) == []
        case "SyncStallHandler":
            made.record_stall("gpu-1", "no disk")
            return lambda other: other.get_alternative_source("", ["gpu-1", "gpu-2"]) == "gpu-2"
        case "TransactionIsolation":
            transaction = made.begin_transaction("gpu-1")
            return lambda other: other.get_transaction(transaction) is not None
        case "TransferVerifier":
            batch = made.record_batch(["a", "b"])
            return lambda other: other.verify_batch(batch, ["a", "b"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "name"), ON_A_STORE.items())
def test_it_is_made_at_a_path_and_another_at_the_same_path_knows_the_same(tmp_path, module, name):
    kind = documented(module, name)
    knows = used(name, kind(tmp_path / "own.db"))
    assert knows(kind(db_path=str(tmp_path / "own.db")))
    assert not get_settings().coordinator_db.exists(), "the engine of this process is not touched"
    asyncio.run(close_engine())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "name"), ON_A_STORE.items())
def test_a_wrong_argument_is_refused_at_once(module, name):
    with pytest.raises(ConfigError, match="db_path"):
        documented(module, name)(object())


def test_a_file_of_another_program_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("these are notes" * 500)
    with pytest.raises(ForeignFile):
        SyncStallHandler(tmp_path / "notes.txt").record_stall("gpu-1")
    assert (tmp_path / "notes.txt").read_text().startswith("these are notes")


@pytest.mark.parametrize(
    ("get", "options"),
    [
        (get_bandwidth_manager, {"limits": BandwidthLimits(max_kbps=5_000)}),
        (get_delivery_ledger, {}),
        (get_sync_dlq, {}),
        (get_sync_mutex, {"max_global": 3}),
        (get_sync_wal, {"pending_max": 5}),
        (get_stall_handler, {"config": StallConfig(penalty_s=10)}),
        (get_transaction_isolation, {}),
        (get_transfer_verifier, {"quarantine_dir": None}),
    ],
)
def test_the_one_of_this_process_takes_the_same_configuration_once(tmp_path, get, options):
    made = get(tmp_path / "own.db", **options)
    assert get() is made
    assert get(tmp_path / "own.db", **options) is made
    with pytest.raises(ConfigError, match="already"):
        get(tmp_path / "other.db")
    asyncio.run(close_engine())


def test_a_retry_queue_stands_on_the_ledger_of_this_process():
    assert get_retry_queue(at_once=2) is get_retry_queue()
    with pytest.raises(ConfigError, match="at_once=2"):
        get_retry_queue(at_once=3)
