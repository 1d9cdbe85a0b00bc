"""The manifest as a local picture: which files exist, who holds verified copies, what is missing where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.kv_mirror import KvMirror
from ringrift.data.manifest_store import ARTIFACTS, LOCATIONS, read_entry
from ringrift.engine.ports import Change, KeyValue
from ringrift.runtime import Runtime


class ReceiptsByDigest(Mapping[str, tuple[Receipt, ...]]):
    """The receipts of each file, made when they are asked for."""

    def __init__(self, copies: Mapping[str, Mapping[str, Receipt]]) -> None:
        self._copies = copies

    def __getitem__(self, digest: str) -> tuple[Receipt, ...]:
        return tuple(self._copies[digest].values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._copies)

    def __len__(self) -> int:
        return len(self._copies)


@dataclass(frozen=True, slots=True)
class ManifestView:
    """One moment of the manifest. A copy counts only with its receipt, a receipt only with its card."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, Receipt]] = field(default_factory=dict)  # by digest, then by node

    def of_kinds(self, kinds: Iterable[ArtifactKind]) -> list[Artifact]:
        """Return the files of these kinds, the oldest first."""
        wanted = frozenset(kinds)
        found = (each for each in self.artifacts.values() if each.kind in wanted)
        return sorted(found, key=lambda each: (each.created_s, each.digest))

    @property
    def cards(self) -> list[Artifact]:
        return list(self.artifacts.values())

    @property
    def receipts(self) -> ReceiptsByDigest:
        """Every receipt, also of files without a card."""
        return ReceiptsByDigest(self.copies)

    def receipts_at(self, node: str) -> dict[str, Receipt]:
        """The receipts of one node, by digest."""
        return {digest: places[node] for digest, places in self.copies.items() if node in places}

    def holders(self, digest: str) -> tuple[str, ...]:
        return tuple(self.copies.get(digest, ())) if digest in self.artifacts else ()

    def is_at(self, digest: str, node: str) -> bool:
        return digest in self.artifacts and node in self.copies.get(digest, ())

    def held_by(self, node: str) -> list[Artifact]:
        return [each for each in self.artifacts.values() if self.is_at(each.digest, node)]

    def missing_at(self, node: str, artifacts: Iterable[Artifact]) -> list[Artifact]:
        return [each for each in artifacts if not self.is_at(each.digest, node)]

    def only_at(self, node: str, *, among: Iterable[str]) -> list[Artifact]:
        """Return what *node* holds and none of *among* does."""
        others = frozenset(among) - {node}
        return [each for each in self.held_by(node) if others.isdisjoint(self.holders(each.digest))]


def is_made_by(artifact: Artifact, node: str) -> bool:
    """Whether *node* made the file; one without a maker is everybody's."""
    return artifact.node in ("", node)


def games_in(artifacts: Iterable[Artifact]) -> int:
    """Return the games of files of games; those that a sample file or a report was made of count once."""
    return sum(each.games for each in artifacts if each.kind is ArtifactKind.GAMES)


class ManifestIndex(KvMirror[ManifestView]):
    """Keeps the picture between looks, which cost what changed and not what is there."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        super().__init__(kv, runtime, (ARTIFACTS, LOCATIONS), _ManifestPicture)


class _ManifestPicture:
    """All cards and receipts, in little memory: names and digests that repeat are kept once."""

    def __init__(self) -> None:
        self._artifacts: dict[str, Artifact] = {}
        self._copies: dict[str, Mapping[str, Receipt]] = {}  # the inner ones are replaced, never changed
        self._strings: dict[str, str] = {}
        self._view: ManifestView | None = None

    def view(self) -> ManifestView:
        if self._view is None:
            self._view = ManifestView(dict(self._artifacts), dict(self._copies))
        return self._view

    def apply(self, change: Change) -> None:
        self._view = None
        if change.key.startswith(ARTIFACTS):
            self._apply_card(change, change.key.removeprefix(ARTIFACTS))
        else:
            self._apply_receipt(change, *change.key.removeprefix(LOCATIONS).split("/", 1))

    def _apply_card(self, change: Change, digest: str) -> None:
        if change.value is None:
            self._artifacts.pop(digest, None)
            return
        card = read_entry(change.key, change.value, Artifact)
        self._artifacts[card.digest] = replace(
            card, config=self._once(card.config), node=self._once(card.node)
        )

    def _apply_receipt(self, change: Change, digest: str, node: str) -> None:
        places = {name: each for name, each in self._copies.get(digest, {}).items() if name != node}
        if change.value is not None:
            receipt = read_entry(change.key, change.value, Receipt)
            card = self._artifacts.get(digest)
            name, verifier = self._once(node), self._once(receipt.verifier)
            digest = digest if card is None else card.digest
            places[name] = replace(receipt, digest=digest, node=name, verifier=verifier)
        if places:
            self._copies[digest] = places
        else:
            self._copies.pop(digest, None)

    def _once(self, text: str) -> str:
        return self._strings.setdefault(text, text)
