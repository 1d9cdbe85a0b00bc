"""Never fewer verified copies by our own doing: crashes, partitions, lost disks, clocks, mixed rules."""

from collections import Counter
from dataclasses import replace

import pytest
from deletion_world import KEPT_S, DeletionWorld, HolderThatPromisesLater, holder_with

from ringrift.data.protection import deletion
from ringrift.data.protection.deletion import Deleter, DeletionVerdict
from ringrift.testing.simulation import simulate

LIVED_S = 2_000.0
SEEDS_MIN, SEEDS_MAX, SEEDS_PLANTED = 7, 20, 10
REACHED = {
    "deleted",
    "refused: being deleted",
    "promised",
    "no answer",
    "late request",
    "crash in the middle",
    "interrupted",
    "finished",
    "taken back",
    "partition",
    "wiped",
    "damaged",
}


@pytest.fixture(autouse=True)
def short_promises(monkeypatch):
    """So that in an hour many of them end."""
    monkeypatch.setattr(deletion, "KEEP_S", KEPT_S)


def lived(seed, **planted):
    world = DeletionWorld(seed, **planted)
    simulate(world.live(LIVED_S))
    return world


def test_no_deletion_leaves_fewer_copies_than_its_rule_says():
    met = Counter()
    for seed in range(SEEDS_MAX):
        world = lived(seed)
        assert world.violations == [], f"seed {seed}"
        met += world.met
        if seed >= SEEDS_MIN and met.keys() >= REACHED:
            break
    assert met.keys() >= REACHED, f"never met: {REACHED - met.keys()}"
    assert met["deleted"] > 50


class BelievesReceipts(Deleter):
    """Planted: what the records say is enough."""

    async def _ask(self, artifact, rules, *, keep_s):
        asked = await super()._ask(artifact, rules, keep_s=keep_s)
        verdict = DeletionVerdict(allowed=True, reason="receipts", copies_left=2)
        return replace(asked, verdict=verdict)


class FinishesWithoutAsking(Deleter):
    """Planted: what was decided before a crash is carried out."""

    async def _asked_anew(self, artifact, own):
        asked = await super()._asked_anew(artifact, own)
        verdict = DeletionVerdict(allowed=True, reason=own.reason, copies_left=2)
        return type(asked)(verdict=verdict, until_s=self._plane.runtime.boot_s() + KEPT_S)


def promises_though_it_deletes(store):
    def promise(digest, **given):
        begun = store.begun()
        store.end(digest)
        refusal = type(store).promise(store, digest, **given)
        if digest in begun:
            store._do(lambda db: db.execute("INSERT OR REPLACE INTO begun VALUES (?, '')", (digest,)))
        return refusal

    return promise


def begins_though_it_promised(store):
    def begin(digest, *, reason):
        store._do(lambda db: db.execute("INSERT OR REPLACE INTO begun VALUES (?, ?)", (digest, reason)))
        return ""

    return begin


@pytest.mark.parametrize(
    "planted",
    [
        {"deleter": BelievesReceipts},
        {"deleter": FinishesWithoutAsking},
        {"holder": HolderThatPromisesLater},
        {"holder": holder_with(promise=promises_though_it_deletes)},
        {"holder": holder_with(begin=begins_though_it_promised)},
    ],
    ids=[
        "old receipts",
        "finish without asking",
        "promise later",
        "promise while deleting",
        "break a promise",
    ],
)
def test_the_simulation_catches_planted_bugs(planted):
    assert any(lived(seed, **planted).violations for seed in range(SEEDS_PLANTED))
