"""How files are cut into requests."""

from hypothesis import given
from hypothesis import strategies as st

from ringrift.data.artifacts import Artifact
from ringrift.data.transfer.chunks import chunk_count
from ringrift.data.transfer.http.wire import (
    BATCH_BYTES_MAX,
    CHUNKS_AT_ONCE,
    FILES_AT_ONCE,
    ChunkSegment,
    SmallFiles,
    cut,
)
from ringrift.data.transfer.receiving import SMALL_BYTES_MAX


@given(sizes=st.lists(st.integers(0, 5 * SMALL_BYTES_MAX) | st.integers(0, 1000), max_size=40))
def test_every_byte_is_in_exactly_one_request_and_no_request_is_too_large(sizes):
    cards = [Artifact(digest=f"{n:064x}", size=size) for n, size in enumerate(sizes)]
    pieces = cut(cards)
    small = [piece for piece in pieces if isinstance(piece, SmallFiles)]
    segments = [piece for piece in pieces if isinstance(piece, ChunkSegment)]
    assert [card for piece in small for card in piece.artifacts] == [
        card for card in cards if card.size <= SMALL_BYTES_MAX
    ]
    for piece in small:
        assert 0 < len(piece.artifacts) <= FILES_AT_ONCE
        assert sum(card.size for card in piece.artifacts) <= BATCH_BYTES_MAX + SMALL_BYTES_MAX
    for card in cards:
        positions = [p for piece in segments if piece.of.artifact is card for p in piece.positions]
        count = chunk_count(card.size) if card.size > SMALL_BYTES_MAX else 0
        assert positions == list(range(count))
    assert all(len(piece.positions) <= CHUNKS_AT_ONCE for piece in segments)
