"""Files on their way in: part after part, or brought by another program."""

import hashlib
import os
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_transports import Store, artifact
from ringrift.data.transfer.receiving import Landing, Piece, rsync_place
from ringrift.errors import ConfigError, StorageFull
from ringrift.runtime import SystemRuntime

CONTENT = bytes(range(256)) * 40


def landing_in(root, **limits):
    store = Store(root, SystemRuntime())
    return store, Landing(store.intake("here", **limits), verifier="test", now_s=lambda: 1000.0)


@pytest.fixture
def landing(tmp_path):
    return landing_in(tmp_path)


def piece_of(content, start, end, *, data=None, digest=None):
    part = content[start:end]
    return Piece(
        digest=digest or artifact(content).digest,
        size=len(content),
        offset=start,
        sha256=hashlib.sha256(part).hexdigest(),
        data=part if data is None else data,
    )


def take(landing, *pieces):
    return landing.take(pieces)


def test_parts_in_order_make_the_file(landing):
    store, land = landing
    card = artifact(CONTENT)
    landed = take(land, piece_of(CONTENT, 0, 4000))
    assert landed.offsets == {card.digest: 4000}
    assert store.read(card) is None
    landed = take(land, piece_of(CONTENT, 4000, len(CONTENT)))
    [receipt] = landed.receipts
    assert (receipt.digest, receipt.node, receipt.size) == (card.digest, "here", len(CONTENT))
    assert receipt.verifier == "test"
    assert store.read(card) == CONTENT


def test_a_part_that_comes_twice_or_too_early_changes_nothing(landing):
    _, land = landing
    take(land, piece_of(CONTENT, 0, 4000))
    again = take(land, piece_of(CONTENT, 0, 4000))
    early = take(land, piece_of(CONTENT, 8000, len(CONTENT)))
    digest = artifact(CONTENT).digest
    assert again.offsets == early.offsets == {digest: 4000}
    assert take(land, piece_of(CONTENT, 4000, len(CONTENT))).failed == ()


def test_a_damaged_part_is_refused_and_asked_for_again(landing):
    _, land = landing
    digest = artifact(CONTENT).digest
    landed = take(land, piece_of(CONTENT, 0, 4000, data=b"x" * 4000))
    assert (landed.offsets, landed.corrupted) == ({digest: 0}, {digest})


def test_a_whole_of_wrong_bytes_is_thrown_away(landing):
    store, land = landing
    digest = artifact(CONTENT).digest
    wrong = bytes(reversed(CONTENT))
    landed = take(land, piece_of(wrong, 0, len(wrong), digest=digest))
    assert landed.corrupted == {digest}
    assert land.look({digest: len(CONTENT)}).offsets == {}
    assert take(land, piece_of(CONTENT, 0, len(CONTENT))).failed == ()
    assert store.read(artifact(CONTENT)) == CONTENT


def test_what_was_begun_with_more_bytes_than_the_file_has_begins_anew(landing):
    store, land = landing
    digest = artifact(b"short").digest
    store.folder.incoming.mkdir(parents=True)
    (store.folder.incoming / digest).write_bytes(b"far too long")
    assert take(land, piece_of(b"short", 0, 5)).failed == ()
    assert store.read(artifact(b"short")) == b"short"


def test_no_room_is_told_before_the_first_byte(tmp_path):
    store, land = landing_in(tmp_path, reserve_bytes=1 << 60)
    with pytest.raises(StorageFull):
        land.look({"0" * 64: 1})
    assert land.look({}).receipts == ()
    card = store.put(b"here")
    assert [receipt.digest for receipt in land.look({card.digest: 4}).receipts] == [card.digest]


def test_another_program_s_file_is_published_only_when_it_is_whole_and_right(landing):
    _, land = landing
    folder = land.rsync_folder("gpu-1")
    good, short, wrong, absent = (artifact(text) for text in (b"good", b"short", b"wrong", b"absent"))
    (folder / good.digest).write_bytes(b"good")
    (folder / short.digest).write_bytes(b"sho")
    (folder / wrong.digest).write_bytes(b"wrung")
    landed = land.seal(folder, {card.digest: card.size for card in (good, short, wrong, absent)})
    assert [receipt.digest for receipt in landed.receipts] == [good.digest]
    failed = dict(landed.failed)
    assert set(failed) == {short.digest, wrong.digest, absent.digest}
    assert landed.corrupted == {wrong.digest}
    assert failed[short.digest] == "3 of 5 bytes arrived"
    assert [path.name for path in folder.iterdir()] == [short.digest]  # to be continued


def test_a_writer_that_lives_on_cannot_change_what_was_verified(landing):
    store, land = landing
    folder, card = land.rsync_folder("gpu-1"), artifact(CONTENT)
    with (folder / card.digest).open("wb") as writer:
        writer.write(CONTENT)
        writer.flush()
        landed = land.seal(folder, {card.digest: card.size})
        assert [receipt.digest for receipt in landed.receipts] == [card.digest]
        writer.seek(0)
        writer.write(b"something else")
    assert store.read(card) == CONTENT


def test_leftovers_that_nobody_continues_are_swept(tmp_path):
    _, land = landing_in(tmp_path)
    folder = land.rsync_folder("gpu-1")
    old, young = folder / ("a" * 64), folder / ("b" * 64)
    for path, age_s in ((old, 8 * 86_400), (young, 60)):
        path.write_bytes(b"x")
        os.utime(path, (1000.0 - age_s, 1000.0 - age_s))
    land.rsync_folder("gpu-1")
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "ünïcode", "x" * 5000])
def test_names_of_nodes_lead_nowhere_else(name):
    place = rsync_place(name)
    assert place.startswith(".incoming/rsync-")
    assert ".." not in place
    assert place.count("/") == 1


def test_a_digest_that_is_a_path_is_refused(landing):
    _, land = landing
    with pytest.raises(ConfigError):
        land.look({"../../etc/passwd": 1})
    with pytest.raises(ConfigError):
        land.seal(land.rsync_folder("x"), {"../evil": 1})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 3000))
def test_whatever_comes_only_the_right_bytes_become_visible_and_a_patient_sender_gets_there(seed, size):
    """Parts come damaged, twice, out of order and cut off; the sender always goes on where it is told."""
    rng = random.Random(seed)
    content = rng.randbytes(size)
    card = artifact(content)
    with tempfile.TemporaryDirectory() as root:
        store, land = landing_in(root)
        offset, done = 0, False
        for _ in range(200):
            start = offset if rng.random() < 0.7 else rng.randrange(size + 1)
            end = min(size, start + rng.randrange(1, 1500))
            damaged = rng.randbytes(end - start) if rng.random() < 0.2 and end > start else None
            landed = take(land, piece_of(content, start, end, data=damaged))
            assert store.read(card) in (None, content)
            done = bool(landed.receipts)
            if done:
                break
            offset = landed.offsets.get(card.digest, 0)
        assert done
        assert store.read(card) == content
