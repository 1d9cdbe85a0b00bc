"""What a sender knows of its files arrives with them, at nodes that have an engine of their own."""

import os

import msgspec
import pytest

from data_benches import bench_of
from data_cluster import running_node
from data_transports import HERE, THERE
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.config import DataNode
from ringrift.data.manifest.catalog import take_over_arrivals
from ringrift.data.receive_main import ReceiveRequest
from ringrift.data.transfer.contract import CHUNK_BYTES, Terms
from ringrift.data.transfer.http.wire import File, Files, FileToSeal, decode, encode
from ringrift.data.transfer.receiving import MetadataFolder, packed_cards


@pytest.fixture(params=["http", "rsync", "base64"])
async def bench(request, tmp_path, tmp_path_factory):
    made = bench_of(request, tmp_path, tmp_path_factory)
    yield made
    await made.close()


def described(card, **fields):
    known = {"kind": ArtifactKind.REPORT, "name": "report.json", "config": "hex8_2p", "node": "here"}
    return msgspec.structs.replace(card, **{**known, "games": 7, "rows": 99, "created_s": 5.0, **fields})


async def test_files_are_known_at_their_receiver_as_they_were_at_their_sender(bench):
    sizes = (0, 1000, CHUNK_BYTES + 7)
    cards = [described(bench.here.put(os.urandom(size)), rows=size) for size in sizes]
    moved = await bench.transport.send(bench.node, cards, Terms())
    assert moved.failed == ()
    async with running_node(THERE, bench.there.root) as there:
        assert {card.digest for card in await take_over_arrivals(there.plane)} == {c.digest for c in cards}
        for card in cards:
            assert await there.plane.manifest.artifact(card.digest) == card
            (copy,) = await there.plane.manifest.copies(card.digest)
            assert (copy.node, copy.verifier) == (THERE, bench.transport.name)
        assert await take_over_arrivals(there.plane) == []


async def test_what_arrived_waits_for_its_node_when_a_command_runs_under_another_name(bench):
    card = described(bench.here.put(b"games"))
    await bench.transport.send(bench.node, [card], Terms())
    async with running_node("unnamed", bench.there.root) as unnamed:
        assert await take_over_arrivals(unnamed.plane) == []
    async with running_node(THERE, bench.there.root) as there:
        assert await take_over_arrivals(there.plane) == [card]


async def test_the_receiver_knows_that_the_sender_has_the_file_too(bench):
    card = described(bench.here.put(b"games"))
    async with running_node(THERE, bench.there.root, DataNode(name=HERE)) as there:
        await bench.transport.send(bench.node, [card], Terms())
        await take_over_arrivals(there.plane)
        assert await there.holders(card) == [HERE, THERE]
        assert {each.size for each in await there.plane.manifest.copies(card.digest)} == {5}


async def test_what_a_node_knows_or_does_not_have_is_not_changed_by_what_others_say(bench):
    known, gone = (described(bench.here.put(os.urandom(size))) for size in (100, 200))
    async with running_node(THERE, bench.there.root) as there:
        own = msgspec.structs.replace(known, name="ours")
        await there.plane.manifest.register([own])
        await bench.transport.send(bench.node, [known, gone], Terms())
        bench.there.folder.place(gone.digest).unlink()
        assert await take_over_arrivals(there.plane) == []
        assert await there.plane.manifest.artifact(known.digest) == own
        assert await there.holders(known) == [THERE]
        assert await there.plane.manifest.artifact(gone.digest) is None


async def test_a_card_that_is_not_understood_costs_its_words_only(bench):
    """As one of another version would be."""
    card = bench.here.put(b"games")
    box = MetadataFolder(bench.there.folder)
    strange = msgspec.Raw(b'{"digest": "%s", "size": 5, "kind": "hologram"}' % card.digest.encode())
    moved = await bench.transport.send(bench.node, [card], Terms())
    box.put([strange, msgspec.Raw(b"[]")], moved.receipts, sender="here")
    assert list(box.lists()) == []
    box.put(packed_cards([described(card)]), moved.receipts, sender="here")
    ((path, arrived),) = box.lists()
    path.write_bytes(msgspec.json.encode(arrived))  # as an earlier version kept it
    assert list(box.lists()) == [(path, arrived)]
    path.write_bytes(b'[{"card": {"dig')
    assert list(box.lists()) == []
    assert not path.exists()


async def test_words_that_are_not_what_was_kept_are_not_believed(bench):
    card = bench.here.put(b"games")
    moved = await bench.transport.send(bench.node, [card], Terms())
    box = MetadataFolder(bench.there.folder)
    for path, _ in box.lists():
        path.unlink()
    box.put(packed_cards([described(card)]), moved.receipts, sender="here")
    ((path, _),) = box.lists()
    stored = path.read_bytes()
    for place in range(len(stored)):
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :])
        assert list(box.lists()) == []


def test_requests_of_nodes_that_send_no_cards_are_understood_and_the_other_way_round():
    card = described(Artifact(digest="ab" * 32, size=5))
    file, cards = File(card.digest, card.size), packed_cards([card])
    assert decode(encode(Files((file,))), Files).cards == ()
    assert decode(encode(file), FileToSeal) == FileToSeal(card.digest, 5)
    assert decode(encode(FileToSeal(card.digest, 5, cards)), File) == file
    assert encode(Files((file,))) == msgspec.json.encode({"files": [file]})
    assert msgspec.json.decode(b"{}", type=ReceiveRequest).cards == ()


def test_a_card_that_says_nothing_or_far_too_much_stays():
    plain = Artifact(digest="ab" * 32, size=5)
    assert packed_cards([plain, described(plain, name="n" * 10_000)]) == ()
