"""Signatures: every word counts, each request counts once, and no jump of a clock opens the window again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.data.transfer.http.wire import (
    SIGNATURE,
    WINDOW_S,
    NotSigned,
    OnceOnly,
    ReplayedRequest,
    SignedText,
    Signer,
    StaleRequest,
    digest_of,
)

SECRET = b"a secret of some length"
WORDS = SignedText(
    method="POST",
    path="/v1/held",
    node="n",
    time="5.0",
    nonce="x",
    head_length=2,
    head_digest=digest_of(b"{}"),
    content_length=2,
)
LETTERS = st.text("abcdefghij/0123456789.", max_size=12)


def signature(words, secret=SECRET):
    return Signer(secret).request_headers(words)[SIGNATURE]


def test_a_signature_holds_for_what_it_was_made():
    Signer(SECRET).check_request(WORDS, signature(WORDS))


@given(field=st.sampled_from(["method", "path", "node", "time", "nonce"]), value=LETTERS)
def test_no_word_can_be_changed(field, value):
    changed = replace(WORDS, **{field: value})
    if changed != WORDS:
        with pytest.raises(NotSigned):
            Signer(SECRET).check_request(changed, signature(WORDS))


@given(parts=st.lists(LETTERS, min_size=3, max_size=3), other=st.lists(LETTERS, min_size=3, max_size=3))
def test_no_two_requests_share_a_signature(parts, other):
    first, second = (
        replace(WORDS, path=path, node=node, nonce=nonce) for path, node, nonce in (parts, other)
    )
    assert (signature(first) == signature(second)) == (parts == other)


@pytest.mark.parametrize(
    "change", [{"head_digest": digest_of(b"{ }")}, {"content_length": 3}, {"head_length": 3}]
)
def test_the_head_and_the_lengths_are_signed(change):
    with pytest.raises(NotSigned):
        Signer(SECRET).check_request(replace(WORDS, **change), signature(WORDS))


@pytest.mark.parametrize("given_signature", [None, "", "0" * 64, "é"])
def test_nothing_less_than_the_signature_will_do(given_signature):
    with pytest.raises(NotSigned):
        Signer(SECRET).check_request(WORDS, given_signature)


def test_another_secret_gives_another_signature():
    with pytest.raises(NotSigned):
        Signer(SECRET).check_request(WORDS, signature(WORDS, b"another secret of some length"))


def test_an_answer_belongs_to_its_request():
    signer = Signer(SECRET)
    made = signer.response_signature(nonce="a", status=200, head=b"x", content_length=1)
    signer.check_response(made, nonce="a", status=200, head=b"x", content_length=1)
    for change in ({"nonce": "b"}, {"status": 201}, {"head": b"y"}, {"content_length": 9}):
        facts = {"nonce": "a", "status": 200, "head": b"x", "content_length": 1} | change
        with pytest.raises(NotSigned):
            signer.check_response(made, **facts)


def test_a_request_is_no_answer():
    signer = Signer(SECRET)
    with pytest.raises(NotSigned):
        signer.check_response(signature(WORDS), nonce="x", status=200, head=b"{}", content_length=2)


class Clocks:
    def __init__(self):
        self.wall_s, self.passed_s = 1000.0, 0.0

    def pass_time(self, seconds):
        self.wall_s += seconds
        self.passed_s += seconds

    def once_only(self):
        return OnceOnly(now_s=lambda: self.wall_s, monotonic_s=lambda: self.passed_s)


def test_a_request_passes_once_and_another_passes_too():
    once = Clocks().once_only()
    once.admit("1000.0", "a")
    once.admit("1000.0", "b")
    with pytest.raises(ReplayedRequest):
        once.admit("1000.0", "a")


@pytest.mark.parametrize("time", [str(1000 + WINDOW_S + 1), "999.9", "nan", "inf", "", "soon"])
def test_a_time_that_is_not_now_is_stale_and_the_servers_time_is_told(time):
    with pytest.raises(StaleRequest) as refused:
        Clocks().once_only().admit(time, "a")
    assert refused.value.server_s == 1000.0


@pytest.mark.parametrize("nonce", ["", "x" * 65])
def test_a_nonce_has_a_length(nonce):
    with pytest.raises(StaleRequest):
        Clocks().once_only().admit("1000.0", nonce)


@given(
    steps=st.lists(st.tuples(st.floats(0, 2 * WINDOW_S), st.floats(-1e6, 1e6)), max_size=12),
    ahead_s=st.floats(0, WINDOW_S),
)
def test_whatever_the_clock_does_a_request_passes_at_most_once(steps, ahead_s):
    clocks = Clocks()
    once = clocks.once_only()
    sent = str(1000.0 + ahead_s)
    once.admit(sent, "a")
    for number, (passed_s, jump_s) in enumerate(steps):
        clocks.pass_time(passed_s)
        clocks.wall_s += jump_s
        once.admit(str(once.server_s()), f"another {number}")  # so that old ones leave
        with pytest.raises((ReplayedRequest, StaleRequest)):
            once.admit(sent, "a")
