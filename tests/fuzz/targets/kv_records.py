"""Records in the key-value store: whatever lies under a key is read, or refused as `Corrupt` with the key."""

import msgspec
from tests.fuzz.mutation import mutated_json

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.deletion_records import Heir, Tombstone
from ringrift.data.deletion_records import _read as read_deletion
from ringrift.data.kv_records import KvRecords
from ringrift.data.manifest_store import read_entry
from ringrift.engine.ports import Entry
from ringrift.errors import Corrupt

DIGEST = "ab" * 32
KINDS = (Artifact, Receipt, Tombstone, Heir)


def seeds() -> list[bytes]:
    card = Artifact(digest=DIGEST, size=5, kind=ArtifactKind.GAMES, name="a.db", config="square8_2p", games=3)
    receipt = Receipt(digest=DIGEST, node="a", size=5, verified_s=1.5)
    return [*map(msgspec.json.encode, (card, receipt)), b'{"nodes": {"a": {}}}', b"[" * 100_000, b"\xff"]


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def run(data: bytes) -> None:
    entry = Entry(key="key", value=data, revision=1)
    for kind in KINDS:
        for read in (
            lambda kind=kind: KvRecords(None, "", kind).read(entry),
            lambda kind=kind: read_entry("key", data, kind),
            lambda kind=kind: read_deletion("key", data, kind),
        ):
            try:
                found = read()
            except Corrupt as refusal:
                assert "key" in str(refusal)
                continue
            assert msgspec.json.decode(msgspec.json.encode(found), type=kind) == found
