"""What senders say of their files, kept until this node's manifest takes it over.

A receiver (the data server, a command over ssh) has no engine and so no manifest. It lays the cards of files
that it verified into a folder beside them, with the receipts; `ringrift.data.arrivals` takes them from there.
A card that is lost or cannot be read costs its words only: the file is found as an orphan. All calls block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from ringrift.data.artifacts import Artifact, Receipt, check_words
from ringrift.decoding import decode_as
from ringrift.engine.digests import record_hash
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.engine.sqlite.files import ARRIVALS
from ringrift.errors import ConfigError
from ringrift.held_folder import make_folders, remove_file, rename_file, write_file

log = structlog.get_logger()

CARD_BYTES_MAX = 4096
LISTS_MAX = 10_000  # one for each request that brought files; the oldest go first


class ArrivedFile(msgspec.Struct, frozen=True):
    """A file that came from another node, what that node said of it, and that it is here."""

    card: Artifact
    receipt: Receipt
    sender: str = ""  # it has the file, too: these were its bytes


def packed_cards(artifacts: Iterable[Artifact]) -> tuple[msgspec.Raw, ...]:
    """Cards as they travel; those that say nothing, or far too much, stay."""
    telling = (card for card in artifacts if card != Artifact(digest=card.digest, size=card.size))
    packed = (msgspec.json.encode(card) for card in telling)
    return tuple(msgspec.Raw(text) for text in packed if len(text) <= CARD_BYTES_MAX)


class CardBox:
    """The folder of one node."""

    def __init__(self, blobs: BlobFolder) -> None:
        self._blobs, self._folder = blobs, blobs.folder / ARRIVALS

    def put(self, packed: Iterable[msgspec.Raw], receipts: Iterable[Receipt], *, sender: str) -> None:
        """Keep the cards of files that have a receipt. What cannot be kept is left out, and logged."""
        known = {receipt.digest: receipt for receipt in receipts}
        cards = [card for card in map(_read_card, packed) if card is not None]
        arrived = [
            ArrivedFile(card, known[card.digest], sender)
            for card in cards
            if card.digest in known and card.size == known[card.digest].size
        ]
        if not arrived:
            return
        try:
            making = self._blobs.private_name()
            content = msgspec.json.encode(arrived)
            write_file(making, record_hash(content).encode() + b"\n" + content)
            make_folders(self._folder)
            rename_file(making, self._folder / making.name)
        except OSError as error:
            log.warning("transfer.cards_not_kept", files=len(arrived), error=str(error))

    def lists(self) -> Iterator[tuple[Path, list[ArrivedFile]]]:
        """What waits, one request after the other. The caller removes a list when it is taken over."""
        for path in self._waiting():
            try:
                yield path, _read_list(path.read_bytes())
            except FileNotFoundError:
                continue  # another process was first
            except UNREADABLE as error:
                log.warning("transfer.cards_unreadable", path=str(path), error=str(error))
                remove_file(path)

    def sweep(self) -> None:
        """Let the oldest go where nobody takes any."""
        waiting = self._waiting()
        if len(waiting) > LISTS_MAX:
            ages = {path: path.stat().st_mtime for path in waiting if path.exists()}
            for path in sorted(ages, key=lambda path: ages[path])[:-LISTS_MAX]:
                remove_file(path)

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*")) if self._folder.is_dir() else []


def _read_list(stored: bytes) -> list[ArrivedFile]:
    """What was kept of one request; a list without a hash was kept by an earlier version."""
    told, _, content = stored.rpartition(b"\n")
    if not stored.startswith(b"[") and told != record_hash(content).encode():
        raise msgspec.DecodeError("it is damaged: this is not what was kept")
    return decode_as(content, list[ArrivedFile])


def _read_card(packed: msgspec.Raw) -> Artifact | None:
    try:
        card = decode_as(packed, Artifact)
        check_words(card)
        return card
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        log.info("transfer.card_not_understood", error=str(error))  # another version's, perhaps
        return None
