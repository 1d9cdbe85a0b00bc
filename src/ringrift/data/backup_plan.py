"""Which files an archive still lacks, and which of them go now. Nothing here deletes: an archive only grows.

What is missing follows from the manifest each time anew, so a batch that failed, or an event that was lost,
is found again at the next look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.errors import ConfigError

_FIRST = (ArtifactKind.MODEL, ArtifactKind.CARD, ArtifactKind.SNAPSHOT, ArtifactKind.SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRules:
    """When to begin and how to go on after a failure."""

    gather_s: float = 60.0  # promotions that follow each other go together
    gather_max: int = 5  # but so many do not wait
    retry_s: float = 30.0
    retry_s_max: float = 900.0
    alarm_after: int = 3  # failures in a row of one file
    batch_files: int = 1_000
    reverify_s: float = 21 * 86_400.0  # receipts count for 30 days
    reverify_files: int = 50  # in one round
    games_wanted: int = 500  # a config with fewer games here gets archived ones
    state_s: float = 600.0  # a state goes at least so often while anything happens, and at every promotion
    state_look_s: float = 30.0  # between two looks whether one is due

    def __post_init__(self) -> None:
        if self.gather_s < 0 or not 0 < self.retry_s <= self.retry_s_max:
            raise ConfigError("backup rules: gather_s must not be negative, and 0 < retry_s <= retry_s_max")
        if not 0 < self.state_look_s <= self.state_s:
            raise ConfigError("backup rules: 0 < state_look_s <= state_s")
        if min(self.gather_max, self.alarm_after, self.batch_files) < 1:
            raise ConfigError("backup rules: gather_max, alarm_after and batch_files must be at least 1")

    def wait_s(self, failures: int) -> float:
        return min(self.retry_s_max, self.retry_s * 2.0 ** min(failures - 1, 16))


def plan_backup(
    artifacts: Iterable[Artifact],
    copies: Mapping[str, Collection[Receipt]],
    *,
    archive: str,
    holders: Collection[str],
    only: Collection[str] | None = None,
    kinds: Collection[ArtifactKind] | None = None,
    resting: Collection[str] = (),
) -> list[Artifact]:
    """Return what one of *holders* has and the archive has not, models first, then by age."""
    lacking = []
    for artifact in artifacts:
        nodes = {receipt.node for receipt in copies.get(artifact.digest, ())}
        if archive in nodes or nodes.isdisjoint(holders) or artifact.digest in resting:
            continue
        if (only is None or artifact.digest in only) and (kinds is None or artifact.kind in kinds):
            lacking.append(artifact)
    return sorted(lacking, key=lambda each: (_rank(each.kind), each.created_s, each.digest))


def plan_reverification(
    copies: Mapping[str, Collection[Receipt]], *, archive: str, now_s: float, rules: BackupRules
) -> list[str]:
    """Return files of the archive that were not read for long, the longest first."""
    old = [
        (receipt.verified_s, digest)
        for digest, receipts in copies.items()
        for receipt in receipts
        if receipt.node == archive and receipt.verified_s < now_s - rules.reverify_s
    ]
    return [digest for _, digest in sorted(old)[: rules.reverify_files]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastState:
    """The last state of this run that an archive has, or that was found to hold nothing new."""

    at_s: float
    champions: Mapping[str, str]


def state_due(
    last: LastState | None, champions: Mapping[str, str], *, now_s: float, rules: BackupRules
) -> str:
    """Return why a state is due now, from what is and not from what was heard; empty if none is."""
    if last is None:
        return "the first"
    if dict(last.champions) != dict(champions):
        return "promotion"
    if not last.at_s <= now_s < last.at_s + rules.state_s:  # a clock that was set back proves nothing
        return "time"
    return ""


def plan_import(
    archived: Iterable[Artifact],
    held: Mapping[str, Artifact],
    *,
    games_wanted: int,
    given_up: Collection[str] = (),
) -> dict[str, list[Artifact]]:
    """Return, for configs with too few games here, the newest archived games up to the wanted number."""
    games: dict[str, int] = {}
    for artifact in held.values():
        if artifact.kind is ArtifactKind.GAMES:
            games[artifact.config] = games.get(artifact.config, 0) + artifact.games
    chosen: dict[str, list[Artifact]] = {}
    for artifact in sorted(archived, key=lambda each: (-each.created_s, each.digest)):
        if artifact.kind is not ArtifactKind.GAMES or artifact.digest in held or artifact.digest in given_up:
            continue
        if games.get(artifact.config, 0) >= games_wanted:
            continue
        games[artifact.config] = games.get(artifact.config, 0) + artifact.games
        chosen.setdefault(artifact.config, []).append(artifact)
    return chosen


def _rank(kind: ArtifactKind) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


@dataclass(slots=True)
class _Failure:
    count: int = 0
    next_s: float = 0.0
    why: str = ""


@dataclass(slots=True)
class Failures:
    """What failed and when it is tried again, by the monotonic clock. Bounded by what is open."""

    rules: BackupRules
    _open: dict[str, _Failure] = field(default_factory=dict)

    def failed(self, digest: str, why: str, *, now_s: float) -> None:
        failure = self._open.setdefault(digest, _Failure())
        failure.count += 1
        failure.why, failure.next_s = why, now_s + self.rules.wait_s(failure.count)

    def succeeded(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self._open.pop(digest, None)

    def keep_only(self, digests: Collection[str]) -> None:
        """Forget what is no longer asked for."""
        self._open = {digest: failure for digest, failure in self._open.items() if digest in digests}

    def resting(self, now_s: float) -> frozenset[str]:
        return frozenset(digest for digest, failure in self._open.items() if failure.next_s > now_s)

    def alarming(self) -> dict[str, str]:
        """What failed so often that a person should know."""
        return {
            d: failure.why for d, failure in self._open.items() if failure.count >= self.rules.alarm_after
        }

    def __len__(self) -> int:
        return len(self._open)
