"""Objects of an archive: whatever lies on the drive or in the bucket is read or refused."""

import contextlib

import msgspec
from tests.fuzz.mutation import mutated_json

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.backup.archive import (
    ArchivedFile,
    ArchiveManifest,
    ArchiveMarker,
    ArchivePart,
    NodeInventory,
    check_marker,
    decode,
    encode,
)
from ringrift.engine.encoding import is_digest
from ringrift.errors import Corrupt

KINDS = (ArchivedFile, ArchiveManifest, NodeInventory, ArchiveMarker)


def seeds() -> list[bytes]:
    digest = "ab" * 32
    artifact = Artifact(
        digest=digest, size=5, kind=ArtifactKind.GAMES, name="a.db", config="square8_2p", games=3
    )
    card = ArchivedFile(
        artifact=artifact, parts=(ArchivePart(sha256=digest, size=5),), verified_s=1.5, verified_by="node-a"
    )
    inventory = NodeInventory(node="node-a", at_s=2.0, digests=(digest,))
    manifest = ArchiveManifest(at_s=3.0, cards=(card,), nodes={"node-a": (digest,)})
    things = (card, inventory, manifest, ArchiveMarker())
    unhashed = [msgspec.json.encode(each) for each in things]  # what is changed stays readable
    return [*unhashed, *(encode(each) for each in things), b"[" * 100_000]


def mutate(data, rng):
    return mutated_json(data, rng)


def run(data: bytes) -> None:
    for kind in KINDS:
        try:
            found = decode("key", data, kind)
        except Corrupt:
            continue
        cards = found.cards if isinstance(found, ArchiveManifest) else [found]
        for card in cards:
            if isinstance(card, ArchivedFile):
                assert is_digest(card.artifact.digest)
                assert all(is_digest(part.sha256) for part in card.parts)
                assert sum(part.size for part in card.parts) == card.artifact.size
        assert msgspec.json.decode(encode(found), type=kind) == found
    with contextlib.suppress(Corrupt):
        check_marker("place", data)
