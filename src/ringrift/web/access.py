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
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringrift.runtime import Runtime

# --- keys ---------------------------------------------------------------------------------------------


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


# --- the guard ----------------------------------------------------------------------------------------
#
# Who is answered: the one place that decides it, before any endpoint is asked.
#
# Three things stand between a stranger and the run. *The key*: whatever changes something needs the token or
# a session (`AccessKeys`), and so does reading when the server listens beyond loopback. *The name*: a
# foreign page may have its own name lead to this machine and would then be let in as the same origin, but
# its requests still carry that name; so without a key only names are answered that cannot be somebody
# else's: addresses, `localhost`, this host, those of the settings. *The origin*: what a page of another
# origin sends is refused whatever it carries. Probes answer everybody with yes or no, and tell the reason to
# those who may read.


PROBES = frozenset({"/health", "/livez", "/ready", "/readyz"})
ENTRANCE = "/session"  # takes a code instead of a key, and says what a key is good for
TOKEN_ONLY = frozenset({"/link"})
PAGE = "/"
PAGE_FILES = "/page/"
RIGHT, MAY_READ = "ringrift.right", "ringrift.may_read"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_READING = frozenset({"GET", "HEAD"})
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})  # same-site is another port of this machine
_HOW = (
    "send the content of the file http_token of the data folder as 'Authorization: Bearer TOKEN'; "
    "for a browser, `ringrift link` prints a link that brings the page its key"
)


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """Why a request is not answered."""

    status: int
    why: str


class Guard:
    """Judges every request, and puts the safety headers on every answer."""

    def __init__(
        self, app: ASGIApp, *, keys: AccessKeys, names: tuple[str, ...] = (), open_to_read: bool = True
    ) -> None:
        self._app, self._keys, self._open_to_read = app, keys, open_to_read
        self._names = frozenset(name.lower() for name in names) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        assert scope["type"] == "http", "the server speaks nothing else"
        headers = Headers(scope=scope)
        right = self._keys.right_of(headers.get("authorization"))
        scope[RIGHT] = right
        scope[MAY_READ] = right > Right.NONE or (self._open_to_read and self.is_ours(headers.get("host", "")))
        refusal = self.judge(scope["method"], scope["path"], headers, right=right, may_read=scope[MAY_READ])
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        extra = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
        answer = JSONResponse({"error": refusal.why}, status_code=refusal.status, headers=extra)
        await answer(scope, receive, send_with_headers)

    def judge(
        self, method: str, path: str, headers: Headers, *, right: Right, may_read: bool
    ) -> HttpRefusal | None:
        """Why this request is refused; None if it is not."""
        reading = method in _READING
        if reading and path in PROBES:
            return None
        host = headers.get("host", "")
        if right is Right.NONE and not self.is_ours(host):
            why = f"this server does not answer to {host[:100]!r}; use its address, or localhost"
            return HttpRefusal(403, f"{why}, or name it in http_names")
        if is_foreign(headers, own=host) and not (reading and path == PAGE):
            return HttpRefusal(403, "this request comes from a page of another origin")
        is_page = reading and (path == PAGE or path.startswith(PAGE_FILES))
        if is_page or path == ENTRANCE or (reading and may_read):
            return None
        needed = Right.TOKEN if path in TOKEN_ONLY else Right.SESSION
        if right >= needed:
            return None
        wrong = "authorization" in headers and right is Right.NONE
        return HttpRefusal(401, f"{'this key is not valid here' if wrong else 'this needs the key'}: {_HOW}")

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names this server in a way that nobody else can."""
        name = _without_port(host).lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_foreign(headers: Headers, *, own: str) -> bool:
    """Whether a page of another origin sent this; browsers say so, other programs say nothing."""
    origin = headers.get("origin")
    if origin is not None and (origin == "null" or _netloc(origin) != own.lower()):
        return True
    return headers.get("sec-fetch-site", "") in _FOREIGN_SITES


def may_read(scope: Any) -> bool:
    """Whether whoever sent this request may see how the run is."""
    return bool(scope.get(MAY_READ, False))


def has_key(scope: Any) -> bool:
    """Whether whoever sent this request has the token or a session."""
    return bool(scope.get(RIGHT, Right.NONE) > Right.NONE)


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and name else host
