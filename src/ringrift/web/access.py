"""Who may act over HTTP: the token of the data folder, and sessions of pages that came by a link.

A program reads the token from its file and sends it as `Authorization: Bearer`. A browser never sees it:
`ringrift link` has the server make a code that is good once and not for long, and the page that was opened
with it exchanges it for a session. The page keeps the session and sends it in the same header. It is no
cookie, because a browser sends the cookies of an address to every port of it, also to a server of another
user of this machine. Codes and sessions end with the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from enum import IntEnum

from ringrift.runtime import Runtime

TOKEN_FILE = "http_token"
CODE_S = 600.0
SESSION_IDLE_S = 12 * 3600.0
CODES_MAX = 32
SESSIONS_MAX = 256
_BYTES = 32
_SCHEME = "bearer"


class Right(IntEnum):
    """What a request proved; each includes those before it."""

    NONE = 0
    SESSION = 1  # a page that came by a link
    TOKEN = 2  # whoever can read the data folder


class AccessKeys:
    """Checks tokens and sessions, and makes codes. Belongs to the server's loop; its memory is bounded."""

    def __init__(self, token: str, runtime: Runtime) -> None:
        self._token, self._runtime = _digest(token), runtime
        # By digest, so that finding one takes as long whatever was tried; the oldest first.
        self._codes: OrderedDict[bytes, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, float] = OrderedDict()

    def right_of(self, authorization: str | None) -> Right:
        """What the `Authorization` header of a request proves."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return Right.NONE
        digest = _digest(key.strip())
        if hmac.compare_digest(digest, self._token):
            return Right.TOKEN
        now_s = self._runtime.monotonic_s()
        last_s = self._sessions.pop(digest, None)
        if last_s is None or now_s - last_s > SESSION_IDLE_S:
            return Right.NONE
        self._sessions[digest] = now_s
        return Right.SESSION

    def new_code(self) -> str:
        """A code that opens one session within `CODE_S`."""
        return _add(self._codes, CODES_MAX, self._runtime.monotonic_s())

    def exchange(self, code: str) -> str | None:
        """A session for *code*, which is worth nothing afterwards; None if it was nothing before."""
        now_s = self._runtime.monotonic_s()
        made_s = self._codes.pop(_digest(code), None)
        if made_s is None or now_s - made_s > CODE_S:
            return None
        return _add(self._sessions, SESSIONS_MAX, now_s)


def _add(keys: OrderedDict[bytes, float], count_max: int, now_s: float) -> str:
    key = secrets.token_urlsafe(_BYTES)
    keys[_digest(key)] = now_s
    while len(keys) > count_max:
        keys.popitem(last=False)
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
