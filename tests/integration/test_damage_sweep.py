"""A part of `make damage`: whatever was damaged is noticed or harmless, never wrong, never a traceback."""

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


def test_the_sweep_sees_a_number_that_is_another_and_a_program_that_breaks_off(sweep):
    base = sweep.base
    wrong = {**base, "start": {**base["start"], "rows": base["start"]["rows"] + 40}}
    assert damage_sweep.judge(wrong, base)[0] == "WRONG"
    assert damage_sweep.judge({**base, "traceback": "KeyError"}, base)[0] == "traceback"
    assert damage_sweep.judge(base, base) == ("harmless", "")
