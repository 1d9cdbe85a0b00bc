"""Records in the key-value store: whatever lies under a key is read, or refused as `Corrupt` with the key."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.fuzz.mutation import mutated_json

from ringrift.coordination.coordinator_persistence import StateSnapshot
from ringrift.coordination.cross_process_events import Subscriber
from ringrift.coordination.ephemeral_data_guard import Evacuation, HostNote, WriteThrough
from ringrift.coordination.orchestrator_registry import RoleRow
from ringrift.coordination.sync_durability import DeadLetterEntry, SyncWALEntry
from ringrift.coordination.transfer_verification import BatchChecksum, QuarantineRecord
from ringrift.daemons.requests import DaemonRequest
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.kv_records import DataDecision
from ringrift.data.manifest.store import DiskState, _Away
from ringrift.data.protection.distribution import ModelRequest
from ringrift.data.protection.records import QuarantineNote, Successor, Tombstone
from ringrift.data.sync.cluster_view import SyncRecord
from ringrift.data.sync.mutex import SyncLockInfo
from ringrift.data.transactions import TransactionRecord, _PathClaim
from ringrift.data.transfer.deliveries import DeliveryRecord
from ringrift.data.transfer.limits import BandwidthUse
from ringrift.data.transfer.peers import StallRecord, StallTotals
from ringrift.engine.encoding import decode_entry
from ringrift.engine.leases import ControlHolder, LeaseRecord, read_holder
from ringrift.engine.leases import _seen as read_lease
from ringrift.engine.ports import Entry
from ringrift.engine.records import KvRecords
from ringrift.errors import Corrupt
from ringrift.health.run_status import STATUS_KEY, Champion, RunChoice, RunStatus, decode_run_status
from ringrift.learning.doctor.findings import Diagnosis
from ringrift.learning.facts.facts import AnyFact, Recalled
from ringrift.learning.facts.high_water import mark_path, read_mark
from ringrift.learning.facts.ledger import check_chain, prefix_of, sound_facts
from ringrift.learning.requests import Request, TrainingJob, _request_records
from ringrift.learning.tuning import OptimizationRun
from ringrift.work.admission import StateNotice
from ringrift.work.job.folder import DamagedInput, _damaged
from ringrift.work.limits import Pause
from ringrift.work.tasks import Measured, Reservation, RunningTask, _measured, _tasks
from ringrift.work.worker.records import RunningRecord, SetAsideRecord, WorkerRecord

CONFIG = "square8_2p"
FACT_KEY = f"{prefix_of(CONFIG)}{1:010d}"
DIGEST = "ab" * 32
MARK = mark_path(Path(tempfile.mkdtemp()))  # a file, but read the same way

# By who reads them.
OF_THE_MANIFEST = (Artifact, Receipt)
OF_DELETION = (Tombstone, Successor)
OF_DATA = (
    *(_Away, BandwidthUse, BatchChecksum, DeadLetterEntry, DeliveryRecord, DiskState, Evacuation, HostNote),
    *(ModelRequest, QuarantineNote, QuarantineRecord, StallRecord, StallTotals, SyncLockInfo, SyncRecord),
    *(SyncWALEntry, TransactionRecord, _PathClaim, WriteThrough),
)
OF_THE_ENGINE = (
    *(Champion, DaemonRequest, DataDecision, Diagnosis, OptimizationRun, Recalled, Reservation, RunChoice),
    *(RunningRecord, RunStatus, SetAsideRecord, StateNotice, Subscriber, TrainingJob, Pause, WorkerRecord),
)
OWN: tuple[tuple[str, Callable[[Entry], object]], ...] = (
    ("key", read_lease),
    *(("key", records(None).read) for records in (_request_records, _measured, _damaged, _tasks)),
    ("key", lambda entry: decode_entry(entry, list[RoleRow])),
    ("key", lambda entry: decode_entry(entry, int)),
    ("key", lambda entry: StateSnapshot.from_bytes(entry.value, key=entry.key)),
    (STATUS_KEY, lambda entry: decode_run_status(entry.value)),
    (FACT_KEY, lambda entry: check_chain(CONFIG, [entry])),
)


def _example(kind: Any) -> Any:
    """Plain data that is a *kind*, as far as its types say."""
    if isinstance(kind, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        fields = {field.encode_name: _example(field.type) for field in kind.fields}
        if getattr(kind, "array_like", False):
            return list(fields.values())
        return {kind.tag_field: kind.tag, **fields} if getattr(kind, "tag_field", None) else fields
    if isinstance(kind, msgspec.inspect.UnionType):
        return _example(kind.types[0])
    if isinstance(kind, msgspec.inspect.DictType):
        return {"a": _example(kind.value_type)}
    if isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType | msgspec.inspect.SetType):
        return [_example(kind.item_type)]
    if isinstance(kind, msgspec.inspect.TupleType):
        return [_example(each) for each in kind.item_types]
    if isinstance(kind, msgspec.inspect.EnumType):
        return next(iter(kind.cls)).value
    plain = {"StrType": "a", "IntType": 1, "FloatType": 1.5, "BoolType": True, "AnyType": {"a": [1]}}
    return plain.get(type(kind).__name__)


def seeds() -> list[bytes]:
    card = Artifact(digest=DIGEST, size=5, kind=ArtifactKind.GAMES, name="a.db", config=CONFIG, games=3)
    receipt = Receipt(digest=DIGEST, node="a", size=5, verified_s=1.5)
    kinds = (*OF_DELETION, *OF_DATA, *OF_THE_ENGINE, ControlHolder, DamagedInput, LeaseRecord, RunningTask)
    infos = [msgspec.inspect.type_info(kind) for kind in (*kinds, list[RoleRow], list[Measured])]
    infos += [each for kind in (AnyFact, Request) for each in msgspec.inspect.type_info(kind).types]
    made = [msgspec.json.encode(_example(info)) for info in infos]
    snapshot = StateSnapshot(coordinator="a", version=1, created_s=1.5, state={"a": [1]}).to_bytes()
    return [*map(msgspec.json.encode, (card, receipt)), *made, snapshot, b"12", b"[" * 100_000, b"\xff"]


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def _read(entry: Entry, read: Callable[[Entry], object]) -> object:
    try:
        return read(entry)
    except Corrupt as refusal:
        assert entry.key in str(refusal)
        return None


def run(data: bytes) -> None:
    entry = Entry(key="key", value=data, revision=1)
    readers: list[tuple[Any, Callable[[Entry], object]]] = [
        *((kind, KvRecords(None, "", kind).read) for kind in (*OF_THE_MANIFEST, *OF_DELETION, *OF_DATA)),
        *((kind, lambda entry, kind=kind: decode_entry(entry, kind)) for kind in OF_THE_ENGINE),
    ]
    for kind, read in readers:
        if (found := _read(entry, read)) is not None:
            assert msgspec.json.decode(msgspec.json.encode(found), type=kind) == found
    for key, own in OWN:
        _read(Entry(key=key, value=data, revision=1), own)
    sound_facts(CONFIG, [Entry(key=FACT_KEY, value=data, revision=1)])
    read_holder(data)
    MARK.write_bytes(data)
    _read(Entry(key=str(MARK), value=data, revision=1), lambda entry: read_mark(MARK.parent))
