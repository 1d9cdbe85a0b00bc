"""A part of `make damage`: whatever was damaged is noticed or harmless, never wrong, never a traceback."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import damage_sweep
from damage_sweep import FLIPPED, Case, Sweep, make_run

FLIPS = 5
KEPT = ("database", "write-ahead log", "high-water mark")
CASES = [
    *(Case(kind, FLIPPED, seed) for kind in KEPT for seed in range(FLIPS)),
    *(Case(kind, FLIPPED, 0) for kind in ("blob: model", "blob: shard", "locks, pids, addresses")),
    *(Case(kind, "deleted", 0) for kind in ("database", "blob: model", "blob: shard", "dead letters")),
    *(Case(kind, "older", 0) for kind in ("database", "high-water mark")),
    Case("database", "cut", 0),
    Case("write-ahead log", "emptied", 0),
]
# What cannot be harmless.
NOTICED = {"database": ("deleted", "cut"), "blob: model": ("deleted", FLIPPED), "blob: shard": (FLIPPED,)}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return Sweep(folder, *make_run(folder, promotions=1))


@pytest.mark.timeout(900)
def test_damage_is_noticed_or_harmless(sweep):
    found = {case: sweep.check(case) for case in CASES}
    found = {case: result for case, result in found.items() if result[0]}  # the others cannot be done
    bad = {case: result for case, result in found.items() if result[1] not in ("noticed", "harmless")}
    assert bad == {}
    assert len(found) >= len(CASES) - 2
    for case, (done, verdict, why) in found.items():
        if case.damage in NOTICED.get(case.kind, ()):
            assert verdict == "noticed", (case, done, why)


def with_finding(base, check, text):
    told = json.loads(base["doctor"]["out"])
    told["findings"].append({"check": check, "text": text})
    return {**base["doctor"], "out": json.dumps(told)}


def test_a_real_run_ends_well_or_refuses_with_a_reason():
    assert damage_sweep.judge_run(0, "learned", "") == ("", [])
    lost = "ringrift: the database is missing"
    assert damage_sweep.judge_run(2, "", lost) == ("", [lost])
    for code, out, err in ((1, "", ""), (-9, "", ""), (2, "", ""), (0, damage_sweep.BROKEN, "")):
        assert damage_sweep.judge_run(code, out, err)[0].startswith("run: exit code")


def test_the_sweep_sees_a_number_that_is_another_and_a_program_that_breaks_off(sweep):
    base = sweep.base
    wrong = {**base, "start": {**base["start"], "rows": base["start"]["rows"] + 40}}
    assert damage_sweep.judge(wrong, base)[0] == "WRONG"
    assert damage_sweep.judge({**base, "traceback": "KeyError"}, base)[0] == "traceback"
    fuller = {**wrong, "doctor": with_finding(base, "disk", "the disk is 72 % full")}
    before = {**base, "doctor": with_finding(base, "disk", "the disk is 71 % full")}
    assert damage_sweep.judge(fuller, before)[0] == "WRONG"
    assert damage_sweep.judge({**fuller, "start": base["start"]}, before) == ("harmless", "")
    another = {**wrong, "doctor": with_finding(base, "workers", "no worker is alive")}
    assert damage_sweep.judge(another, base)[0] == "WRONG"
    done = "blobs/ab/abcd emptied"
    for text in ("the database has fewer", "abcd is not as it was"):
        said = {**wrong, "doctor": with_finding(base, "store", text)}
        assert damage_sweep.judge(said, base, done) == ("noticed", f"store: {text}")
    assert damage_sweep.judge(base, base) == ("harmless", "")
