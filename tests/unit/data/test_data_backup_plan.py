"""Which files an archive lacks, when failures are tried again, and what is imported."""

from hypothesis import given
from hypothesis import strategies as st

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.backup.archive import (
    ArchivedFile,
    ArchiveManifest,
    ArchivePart,
    NodeInventory,
    merged,
    same_content,
)
from ringrift.data.backup.service import BackupRules, plan_backup, plan_import, plan_reverification
from ringrift.data.plane import Failures

DIGESTS = [f"{number:064x}" for number in range(20)]


def card(number, kind=ArtifactKind.GAMES, **fields):
    return Artifact(digest=DIGESTS[number], size=10, kind=kind, **fields)


def copies(**nodes_by_number):
    """copies(_0="a b") says that file 0 is on a and b."""
    return {
        DIGESTS[int(number[1:])]: [receipt(int(number[1:]), node) for node in nodes.split()]
        for number, nodes in nodes_by_number.items()
    }


def receipt(number, node, verified_s=0.0):
    return Receipt(digest=DIGESTS[number], node=node, size=10, verified_s=verified_s)


def digests(cards):
    return [each.digest for each in cards]


def test_only_what_a_holder_has_and_the_archive_lacks_goes_models_first():
    cards = [card(0), card(1), card(2), card(3, ArtifactKind.MODEL), card(4, created_s=-1.0)]
    where = copies(_0="here", _1="here archive", _2="elsewhere", _3="here", _4="here")
    planned = plan_backup(cards, where, archive="archive", holders=["here"])
    assert digests(planned) == [DIGESTS[3], DIGESTS[4], DIGESTS[0]]


def test_a_plan_may_be_narrowed():
    cards = [card(0), card(1, ArtifactKind.MODEL), card(2)]
    where = copies(_0="here", _1="here", _2="here")
    narrowed = {"archive": "archive", "holders": ["here"]}
    assert digests(plan_backup(cards, where, kinds=[ArtifactKind.MODEL], **narrowed)) == [DIGESTS[1]]
    assert digests(plan_backup(cards, where, only=[DIGESTS[2]], **narrowed)) == [DIGESTS[2]]
    assert digests(plan_backup(cards, where, resting=[DIGESTS[0], DIGESTS[1]], **narrowed)) == [DIGESTS[2]]


@given(st.lists(st.tuples(st.integers(0, 19), st.booleans()), max_size=60))
def test_a_file_is_planned_until_it_succeeded(outcomes):
    """Whatever fails in whatever order, the archive lacks it until it is there; nothing is forgotten."""
    rules = BackupRules()
    failures, there, now_s = Failures(rules), set(), 0.0
    cards = [card(number) for number in range(20)]
    for number, works in outcomes:
        now_s += rules.retry_s_max
        where = {d: [receipt(0, "here")] + ([receipt(0, "archive")] if d in there else []) for d in DIGESTS}
        planned = plan_backup(
            cards, where, archive="archive", holders=["here"], resting=failures.resting(now_s)
        )
        assert set(digests(planned)) == set(DIGESTS) - there
        if DIGESTS[number] not in there and works:
            there.add(DIGESTS[number])
            failures.succeeded([DIGESTS[number]])
        elif DIGESTS[number] not in there:
            failures.failed(DIGESTS[number], "no", now_s=now_s)
    assert len(failures) <= 20 - len(there)


def test_failures_rest_ever_longer_and_alarm_after_some():
    failures = Failures(BackupRules(retry_s=30.0, retry_s_max=100.0, alarm_after=3))
    for count, rest_s in ((1, 30), (2, 60), (3, 100), (4, 100)):
        failures.failed("x", "no route", now_s=0.0)
        assert failures.resting(rest_s - 1) == {"x"}
        assert failures.resting(rest_s) == frozenset()
        assert bool(failures.alarming()) == (count >= 3)
    failures.keep_only([])
    assert len(failures) == 0


def test_receipts_are_renewed_before_they_stop_counting_the_oldest_first():
    rules = BackupRules(reverify_s=100.0, reverify_files=2)
    found = {
        DIGESTS[n]: [receipt(n, "archive", verified_s=at), receipt(n, "here", verified_s=0.0)]
        for n, at in ((0, 50.0), (1, 10.0), (2, 950.0), (3, 20.0))
    }
    assert plan_reverification(found, archive="archive", now_s=1000.0, rules=rules) == [
        DIGESTS[1],
        DIGESTS[3],
    ]


def test_import_fills_up_poor_configs_with_their_newest_games_only():
    archived = [card(n, config="poor", games=40, created_s=n) for n in range(4)]
    archived += [card(5, config="rich", games=40), card(6, ArtifactKind.MODEL, config="poor")]
    held = {DIGESTS[9]: card(9, config="rich", games=100), DIGESTS[3]: archived[3]}
    chosen = plan_import(archived, held, games_wanted=100, given_up=[DIGESTS[2]])
    assert {config: digests(cards) for config, cards in chosen.items()} == {"poor": [DIGESTS[1], DIGESTS[0]]}


def archived_card(number):
    return ArchivedFile(
        artifact=card(number),
        parts=(ArchivePart(sha256=DIGESTS[number], size=10),),
        verified_s=1.0,
        verified_by="a",
    )


@given(
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 19)),
    st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 19))),
)
def test_merging_manifests_never_loses_anything_and_is_stable(before, now, nodes):
    inventories = [
        NodeInventory(node=n, at_s=0.0, digests=tuple(DIGESTS[i] for i in held)) for n, held in nodes.items()
    ]
    first = merged(None, [archived_card(n) for n in before], [], now_s=1.0)
    second = merged(first, [archived_card(n) for n in now], inventories, now_s=2.0)
    assert {each.artifact.digest for each in second.cards} == {DIGESTS[n] for n in before | now}
    assert {n: set(held) for n, held in second.nodes.items()} == {
        n: {DIGESTS[i] for i in held} for n, held in nodes.items()
    }
    third = merged(second, [archived_card(n) for n in now], inventories, now_s=3.0)
    assert same_content(second, third)
    assert not same_content(None, ArchiveManifest(at_s=0.0, cards=()))
