"""Who may speak, and whether what was said is what arrives.

Each request carries a signature (HMAC-SHA256 under the shared secret) over its method, path, sender, time,
nonce and the digest of its head. The head names the digest of every piece of the payload, so the signature
holds for all bytes although no byte is read twice. Length and digest of the head stand in the headers, so a
server knows who speaks before it takes any of it. Responses are signed over the nonce of their request.

A request counts once: its time must be near the server's and after the server's start, and its nonce unseen.
The server's time is its wall clock at the start plus what passed since, so that no jump of the clock opens
the window again; a sender whose clock differs is told the server's time, signed, and follows it.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ringrift.errors import ConfigError, Conflict, Unavailable

NODE, TIME, NONCE, SIGNATURE, HEAD, DIGEST = (
    "Ringrift-Node",
    "Ringrift-Time",
    "Ringrift-Nonce",
    "Ringrift-Signature",
    "Ringrift-Head",
    "Ringrift-Digest",
)
WINDOW_S = 300.0
_NONCES_MAX = 200_000
_NONCE_LETTERS_MAX = 64


class NotSigned(ConfigError):
    """The signature is missing or wrong: the sender does not know the secret, or its words were changed."""


class StaleRequest(Conflict):
    """The time of the request is too far from the server's."""

    def __init__(self, server_s: float) -> None:
        super().__init__(f"the request's time is too far from the server's, which is {server_s:.3f}")
        self.server_s = server_s


class ReplayedRequest(Conflict):
    """The same request came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What of a request is signed."""

    method: str
    path: str
    node: str
    time: str
    nonce: str
    head_length: int
    head_digest: str
    content_length: int


class Signer:
    """Signs and checks under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def request_headers(self, words: Words) -> dict[str, str]:
        return {
            NODE: words.node,
            TIME: words.time,
            NONCE: words.nonce,
            HEAD: str(words.head_length),
            DIGEST: words.head_digest,
            SIGNATURE: self._of_request(words),
        }

    def check_request(self, words: Words, signature: str | None) -> None:
        """Raise `NotSigned` unless the sender knows the secret."""
        self._check(self._of_request(words), signature)

    def response_signature(self, *, nonce: str, status: int, head: bytes, content_length: int) -> str:
        return self._sign("response", nonce, str(status), str(content_length), digest_of(head))

    def check_response(
        self, signature: str | None, *, nonce: str, status: int, head: bytes, content_length: int
    ) -> None:
        expected = self.response_signature(
            nonce=nonce, status=status, head=head, content_length=content_length
        )
        self._check(expected, signature)

    def _of_request(self, words: Words) -> str:
        return self._sign(
            "request",
            words.method,
            words.path,
            words.node,
            words.time,
            words.nonce,
            str(words.head_length),
            str(words.content_length),
            words.head_digest,
        )

    def _sign(self, *parts: str) -> str:
        # No part may contain the separator: headers and request lines cannot hold a line feed.
        return hmac.new(self._secret, "\n".join(parts).encode(), hashlib.sha256).hexdigest()

    def _check(self, expected: str, given: str | None) -> None:
        if given is None or not hmac.compare_digest(expected.encode(), given.encode()):
            raise NotSigned("the signature is wrong; do both nodes have the same secret?")


class OnceOnly:
    """Lets each request pass once. Safe from several threads; its memory is bounded."""

    def __init__(self, *, now_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._started_s, self._started_monotonic_s = now_s(), monotonic_s()
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, float] = OrderedDict()

    def server_s(self) -> float:
        return self._started_s + self._monotonic_s() - self._started_monotonic_s

    def admit(self, time: str, nonce: str) -> None:
        """Raise `StaleRequest`, or `ReplayedRequest` for one that came before."""
        server_s = self.server_s()
        try:
            sent_s = float(time)
        except ValueError:
            raise StaleRequest(server_s) from None
        in_window = abs(sent_s - server_s) <= WINDOW_S and sent_s >= self._started_s
        if not in_window or not 0 < len(nonce) <= _NONCE_LETTERS_MAX:
            raise StaleRequest(server_s)
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < server_s - 2 * WINDOW_S:
                self._seen.popitem(last=False)
            if nonce in self._seen:
                raise ReplayedRequest("this request came before")
            if len(self._seen) >= _NONCES_MAX:
                raise Unavailable("too many requests in the last minutes", retry_after_s=10.0)
            self._seen[nonce] = server_s  # by the time it came, so that the oldest stand first


def digest_of(head: bytes) -> str:
    """What is signed of a head."""
    return hashlib.sha256(head).hexdigest()
