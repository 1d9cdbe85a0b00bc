"""What is heard of a job: whole lines however they are cut, within bounds, and nothing taken on trust."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ringrift.work.job import protocol
from ringrift.work.job.protocol import JobTalk

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


def heard(*chunks, talk=None):
    talk = talk or JobTalk(now_s=0.0)
    for number, chunk in enumerate(chunks, 1):
        talk.hear(chunk, now_s=float(number))
    return talk


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_the_same_is_heard_however_the_output_is_cut(cuts):
    places = [0, *sorted(cuts), len(WHOLE)]
    talk = heard(*(WHOLE[a:b] for a, b in pairwise(places)))
    assert (talk.stage, talk.done, talk.total, talk.rate, talk.eta_s) == ("playing", 3, 10, 1.0, None)
    assert talk.extra == {"moves": 90}
    assert talk.cpu_s == 2
    assert talk.result["n"] == "é"
    assert talk.artifacts["/out/a.db"].counts == {"games": 3}  # kept, though the result names none
    assert (talk.lines_refused, talk.bytes_heard) == (0, len(WHOLE))
    assert talk.last_line == "playing 3 of 10"


@given(st.binary(max_size=200))
def test_nothing_that_a_job_prints_is_an_error(noise):
    talk = heard(noise, b"\n" + WHOLE)
    assert talk.result is not None


def test_values_of_a_wrong_type_are_no_values():
    line = {"event": "progress", "stage": 7, "done": "many", "total": True, "rate": None, "eta_s": [1]}
    talk = heard(json.dumps(line).encode() + b'\n{"event": "artifact", "path": 3}\n[1]\nNaN\n')
    assert (talk.stage, talk.done, talk.total, talk.rate, talk.eta_s) == ("7", 0, None, 0.0, None)
    assert (talk.artifacts, talk.lines_refused) == ({}, 3)


def test_a_line_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(protocol, "LINE_BYTES_MAX", 1000)
    talk = heard(*[b"x" * 400] * 50, b"\n" + WHOLE)
    assert (talk.lines_refused, talk.result is not None) == (1, True)
    assert talk.bytes_heard == 20_001 + len(WHOLE)


def test_artifacts_have_a_limit(monkeypatch):
    monkeypatch.setattr(protocol, "ARTIFACTS_MAX", 2)
    lines = [json.dumps({"event": "artifact", "path": f"/out/{n}"}).encode() + b"\n" for n in (1, 2, 1, 3)]
    talk = heard(b"".join(lines))
    assert (list(talk.artifacts), talk.lines_refused) == (["/out/1", "/out/2"], 1)


def test_a_heartbeat_shows_life_but_no_movement():
    talk = heard(WHOLE[: WHOLE.index(b'{"event": "artifact"')])
    beat = json.dumps(LINES[3]).encode() + b"\n"
    talk.hear(beat, now_s=50.0)
    assert (talk.heard_s, talk.moved_s) == (50.0, 1.0)
    talk.hear(beat.replace(b'"done": 3', b'"done": 4'), now_s=60.0)
    assert talk.moved_s == 60.0
