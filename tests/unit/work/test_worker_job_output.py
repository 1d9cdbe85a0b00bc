"""What is heard of a job: whole lines however they are cut, within bounds, and nothing taken on trust."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ringrift.work.job import protocol
from ringrift.work.job.protocol import JobOutput

LINES = [
    {"event": "started", "kind": "selfplay", "cpu_s": 0.5},
    {"event": "progress", "stage": "playing", "done": 3, "total": 10, "rate": 1.5, "eta_s": 4.7, "moves": 90},
    {"event": "artifact", "path": "/out/a.db", "artifact": "shard", "sha256": "ab", "counts": {"games": 3}},
    {
        "event": "heartbeat",
        "stage": "playing",
        "done": 3,
        "total": 10,
        "rate": 1.0,
        "idle_s": 9.0,
        "cpu_s": 2,
    },
    {
        "event": "result",
        "status": "done",
        "artifacts": [{"path": "/out/a.db", "artifact": "shard"}],
        "n": "é",
    },
]
WHOLE = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES)


def heard(*chunks, job_output=None):
    job_output = job_output or JobOutput(now_s=0.0)
    for number, chunk in enumerate(chunks, 1):
        job_output.hear(chunk, now_s=float(number))
    return job_output


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_the_same_is_heard_however_the_output_is_cut(cuts):
    places = [0, *sorted(cuts), len(WHOLE)]
    job_output = heard(*(WHOLE[a:b] for a, b in pairwise(places)))
    assert (job_output.stage, job_output.done, job_output.total, job_output.rate, job_output.eta_s) == (
        "playing",
        3,
        10,
        1.0,
        None,
    )
    assert job_output.extra == {"moves": 90}
    assert job_output.cpu_s == 2
    assert job_output.result["n"] == "é"
    assert job_output.artifacts["/out/a.db"].counts == {"games": 3}  # kept, though the result names none
    assert (job_output.lines_refused, job_output.bytes_heard) == (0, len(WHOLE))
    assert job_output.last_line == "playing 3 of 10"


@given(st.binary(max_size=200))
def test_nothing_that_a_job_prints_is_an_error(noise):
    job_output = heard(noise, b"\n" + WHOLE)
    assert job_output.result is not None


def test_values_of_a_wrong_type_are_no_values():
    line = {"event": "progress", "stage": 7, "done": "many", "total": True, "rate": None, "eta_s": [1]}
    job_output = heard(json.dumps(line).encode() + b'\n{"event": "artifact", "path": 3}\n[1]\nNaN\n')
    assert (job_output.stage, job_output.done, job_output.total, job_output.rate, job_output.eta_s) == (
        "7",
        0,
        None,
        0.0,
        None,
    )
    assert (job_output.artifacts, job_output.lines_refused) == ({}, 3)


def test_a_line_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(protocol, "LINE_BYTES_MAX", 1000)
    job_output = heard(*[b"x" * 400] * 50, b"\n" + WHOLE)
    assert (job_output.lines_refused, job_output.result is not None) == (1, True)
    assert job_output.bytes_heard == 20_001 + len(WHOLE)


def test_artifacts_have_a_limit(monkeypatch):
    monkeypatch.setattr(protocol, "ARTIFACTS_MAX", 2)
    lines = [json.dumps({"event": "artifact", "path": f"/out/{n}"}).encode() + b"\n" for n in (1, 2, 1, 3)]
    job_output = heard(b"".join(lines))
    assert (list(job_output.artifacts), job_output.lines_refused) == (["/out/1", "/out/2"], 1)


def test_a_heartbeat_shows_life_but_no_movement():
    job_output = heard(WHOLE[: WHOLE.index(b'{"event": "artifact"')])
    beat = json.dumps(LINES[3]).encode() + b"\n"
    job_output.hear(beat, now_s=50.0)
    assert (job_output.heard_s, job_output.moved_s) == (50.0, 1.0)
    job_output.hear(beat.replace(b'"done": 3', b'"done": 4'), now_s=60.0)
    assert job_output.moved_s == 60.0
