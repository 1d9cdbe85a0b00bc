"""A part of `make damage`: whatever was damaged is noticed or harmless, never wrong, never a traceback."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import damage_sweep
from damage_run import make_run
from damage_sweep import (
    BAD,
    DAMAGES,
    FLIPPED,
    Sweep,
    do_cases,
    read_results,
    replace_table,
    summary,
    working_folder,
)

FLIPS = 3
# What cannot be harmless.
NOTICED = {
    "database": ("deleted", "cut"),
    "high-water mark": ("cut", "emptied", "deleted"),
    "blob: model": ("deleted", FLIPPED),
    "blob: shard": (FLIPPED,),
    "archive: states": (FLIPPED, "cut", "emptied", "deleted"),
    "archive: files": (FLIPPED, "cut", "emptied", "deleted"),
    "recorded games": ("cut", "emptied", "deleted"),
}


@pytest.fixture(scope="module")
def sweep():
    with working_folder() as folder:
        yield Sweep(folder, *make_run(folder, promotions=1))


@pytest.mark.timeout(900)
def test_damage_is_noticed_or_harmless(sweep, tmp_path):
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    cases = sweep.cases(flips=FLIPS, others=1)
    do_cases(sweep, cases, results, parallel=os.cpu_count() or 1)
    found = [each for each in read_results(results) if "verdict" in each]
    assert [each for each in found if each["verdict"] in BAD] == []
    for each in found:
        if each["damage"] in NOTICED.get(each["kind"], ()):
            assert each["verdict"] in ("noticed", ""), each
    done = {(each["kind"], each["damage"]) for each in found if each["verdict"]}
    assert {kind for kind, _ in done} == {case.kind for case in cases}
    assert {damage for _, damage in done} == {*DAMAGES, FLIPPED}

    do_cases(sweep, cases, results, parallel=1)  # all of it is done
    assert len([each for each in read_results(results) if "verdict" in each]) == len(found) == len(cases)
    page.write_text("before\n<!-- table -->\nan older one\n<!-- end -->\nafter\n")
    replace_table(page, summary(read_results(results)))
    row = next(line for line in page.read_text().splitlines() if line.startswith("| blob: model |"))
    assert row.endswith(f"| {FLIPS} noticed |")
    assert "an older one" not in page.read_text()


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
    base = sweep.base("database")
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


def test_a_restore_that_brings_less_has_to_say_so_itself(sweep):
    base = sweep.base("archive: states")
    check = {
        **base["check"],
        "out": json.dumps(
            json.loads(base["check"]["out"]) | {"damaged": [{"key": "states/x", "why": "damaged"}]}
        ),
    }
    fewer = json.loads(base["restore"]["out"])
    fewer["state"]["games"] -= 16
    found = {**base, "check": check, "restore": {**base["restore"], "out": json.dumps(fewer)}}
    assert damage_sweep.judge(found, base, "drive/states/x cut")[0] == "WRONG"
    found["restore"]["err"] = "a newer state is damaged"
    assert damage_sweep.judge(found, base, "drive/states/x cut")[0] == "noticed"
