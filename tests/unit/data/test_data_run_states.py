"""Which states of a run an archive keeps, when the next one is due, and which one a restore takes."""

import hashlib
from itertools import pairwise

import pytest

from ringrift.data.backup.archive import ArchivePart, DriveObjects
from ringrift.data.backup.restore import choose_state
from ringrift.data.backup.run_states import DAY_S, HOUR_S, RunState, StateArchive, states_to_keep
from ringrift.data.backup.service import BackupRules, LastState, state_due
from ringrift.errors import ConfigError, Corrupt
from ringrift.runtime import SystemRuntime

NOW_S = 100 * DAY_S


def test_states_are_kept_ever_more_sparsely_and_the_newest_always():
    times = [NOW_S - 600.0 * number for number in range(6 * 24 * 90)]
    kept = sorted(states_to_keep(times), reverse=True)
    ages = [NOW_S - at_s for at_s in kept]
    assert ages[:7] == [600.0 * number for number in range(7)]
    assert sum(HOUR_S < age <= DAY_S for age in ages) in (23, 24)
    assert sum(DAY_S < age <= 31 * DAY_S for age in ages) in (30, 31)
    assert max(ages) <= 31 * DAY_S
    assert states_to_keep([5.0]) == {5.0}
    assert states_to_keep([]) == set()
    assert states_to_keep([1.0, NOW_S]) == {NOW_S}


def test_thinning_again_and_again_leaves_no_gaps():
    times, kept = [NOW_S + 600.0 * number for number in range(6 * 24 * 5)], []
    for at_s in times:
        kept = sorted(states_to_keep([*kept, at_s]))
    gaps = {later: later - earlier for earlier, later in pairwise(kept)}
    assert max(gap for at_s, gap in gaps.items() if times[-1] - at_s < HOUR_S) == 600.0
    assert max(gap for at_s, gap in gaps.items() if times[-1] - at_s < DAY_S) <= 2 * HOUR_S
    assert max(gaps.values()) <= 2 * DAY_S
    assert (kept[-1], len(kept) <= 7 + 25 + 5) == (times[-1], True)


@pytest.mark.parametrize(
    ("last_s", "champions", "due"),
    [
        (NOW_S - 1, {"a": "1"}, ""),
        (NOW_S - 599, {"a": "1"}, ""),
        (NOW_S - 600, {"a": "1"}, "time"),
        (NOW_S + DAY_S, {"a": "1"}, "time"),  # the clock was ahead, and set back
        (NOW_S - 1, {"a": "2"}, "promotion"),
        (NOW_S - 1, {}, "promotion"),
    ],
)
def test_a_state_is_due_at_a_promotion_and_every_ten_minutes(last_s, champions, due):
    last = LastState(at_s=last_s, champions={"a": "1"})
    assert state_due(last, champions, now_s=NOW_S, rules=BackupRules()) == due
    assert state_due(None, champions, now_s=NOW_S, rules=BackupRules()) == "the first"


def state(run="r1", node="one", at_s=1.0):
    return RunState(run=run, node=node, at_s=at_s, digest="0" * 64, size=0, parts=())


def test_one_of_several_is_never_taken_in_silence():
    states = [state(at_s=1.0), state(at_s=2.0), state(node="two", at_s=3.0), state(run="s1", at_s=4.0)]
    assert choose_state(states[:2]).at_s == 2.0
    assert choose_state(states, node="two").at_s == 3.0
    assert choose_state(states, run="s").at_s == 4.0
    assert choose_state(states, until_s=2.5).at_s == 2.0
    assert choose_state(states, run="r1", node="one").at_s == 2.0
    for asked in ({}, {"node": "one"}, {"run": "r1"}):
        with pytest.raises(ConfigError, match="several runs or nodes"):
            choose_state(states, **asked)
    with pytest.raises(ConfigError, match="of node two"):
        choose_state(states, node="three")


@pytest.fixture
def drive(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    return DriveObjects(folder, SystemRuntime().new_id)


async def test_a_state_comes_back_as_it_went_in_and_damage_is_told(drive, tmp_path):
    database = tmp_path / "state.db"
    database.write_bytes(bytes(range(256)) * 20_000)
    digest = hashlib.sha256(database.read_bytes()).hexdigest()
    archive = StateArchive(drive)
    plain = RunState(run="r", node="a/b", at_s=NOW_S, digest=digest, size=database.stat().st_size, parts=())
    put = await archive.put(database, plain, scratch=tmp_path)
    assert await archive.all(run="r", node="a/b") == [put]
    back = tmp_path / "back.db"
    await archive.fetch(put, back)
    assert back.read_bytes() == database.read_bytes()
    for changed in ({"size": 100}, {"digest": "f" * 64}, {"size": put.size + 1}):
        lying = RunState(**{**{f: getattr(put, f) for f in put.__struct_fields__}, **changed})
        with pytest.raises(Corrupt):
            await archive.fetch(lying, back)
        assert not back.exists()


async def test_only_states_can_be_removed_from_an_archive(drive):
    part = ArchivePart(sha256="a" * 64, size=1)
    await drive.create(part.key, b"x")
    for key in (part.key, "cards/x.json", "manifest.json", "ringrift-archive.json"):
        with pytest.raises(ConfigError, match="nothing else is ever removed"):
            await drive.remove(key)
    assert await drive.read(part.key) == b"x"


async def test_thinning_removes_whole_states_and_what_killed_backups_left(drive, tmp_path):
    database = tmp_path / "state.db"
    database.write_bytes(b"state")
    digest, archive = hashlib.sha256(b"state").hexdigest(), StateArchive(drive)
    for at_s in (NOW_S, NOW_S + 10, NOW_S + 40 * DAY_S):
        plain = RunState(run="r", node="n", at_s=at_s, digest=digest, size=5, parts=())
        await archive.put(database, plain, scratch=tmp_path)
    other = RunState(run="r", node="other", at_s=1.0, digest=digest, size=5, parts=())
    await archive.put(database, other, scratch=tmp_path)
    unfinished = RunState(run="r", node="n", at_s=NOW_S + DAY_S, digest=digest, size=5, parts=())
    await drive.create(unfinished.folder + "part-00000", b"half")
    assert await archive.thin("r", "n", now_s=NOW_S + 40 * DAY_S) == 2
    assert [each.at_s for each in await archive.all()] == [1.0, NOW_S + 40 * DAY_S]
    assert len(await drive.keys("states/")) == 4
