"""What protects a page on loopback from the other pages in the same browser.

A foreign page may have its own name lead to this machine, and would then be let in as the same origin; but
its requests still carry that name. So only names that cannot be somebody else's are answered: addresses,
`localhost`, this host. The probes are left open, because monitoring comes under any name.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/livez", "/ready", "/readyz", "/metrics"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Checks the name that a request asks for, and puts the safety headers on every answer."""

    def __init__(self, app: ASGIApp, *, names: tuple[str, ...] = ()) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if scope["path"] in OPEN_PATHS or self.is_ours(host):
            await self._app(scope, receive, send_with_headers)
            return
        why = f"this server does not answer to {host[:100]!r}; use its address, or localhost"
        await JSONResponse({"error": why}, status_code=403)(scope, receive, send_with_headers)

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


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and name else host
