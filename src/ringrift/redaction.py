"""Taking secrets out of text that people, or other programs, will read.

Whoever writes a log line or an error should not put a secret into it. This is the net under that: what came
back from a library, a foreign program or a user's own settings may carry one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from ringrift.process import process_scope

HIDDEN = "(secret)"
# What this process may have been given for others; found wherever it stands, in whatever form of words.
_VARIABLES = (
    "RINGRIFT_DATA_SECRET",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
)
_LETTERS_MIN = 6  # shorter ones would be found in ordinary words
_DEPTH_MAX = 4
_FORMS = (
    # user:password@ of an address
    (re.compile(r"(?<=://)[^/\s@:]*:[^/\s@]+(?=@)"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=#enter=)[\w-]+"), HIDDEN),
    (re.compile(r"(?i)(x-amz-(?:signature|credential|security-token)=)[^&\s\"']+"), rf"\1{HIDDEN}"),
    # A fencing token is a number, and no secret.
    (
        re.compile(
            r"(?i)((?:secret(?:_access)?_?key|session_token|passw(?:or)?d|api_?key|data_secret|http_token)"
            r"[\"']?\s*[=:]\s*[\"']?)(?!\d+\b)[^\s\"',;&}]{6,}"
        ),
        rf"\1{HIDDEN}",
    ),
)


class LoadedSecrets:
    """What this process read from settings and files; found like what stands in its environment."""

    def __init__(self) -> None:
        self.texts: frozenset[str] = frozenset()  # replaced, never changed: any thread may be reading it


def loaded_secret(text: str) -> str:
    """Return *text*, which is a secret; from now on no log line and no error shows it."""
    loaded = process_scope().get(LoadedSecrets, LoadedSecrets)
    loaded.texts |= {text}
    return text


def without_secrets(text: str) -> str:
    """The text with whatever looks like a secret, or is one of this process's, taken out."""
    loaded = process_scope().peek(LoadedSecrets)
    known = {os.environ.get(name, "") for name in _VARIABLES} | (loaded.texts if loaded else frozenset())
    for value in sorted(known, key=len, reverse=True):  # one may begin with another
        if len(value) >= _LETTERS_MIN and value in text:
            text = text.replace(value, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The last step before a log line is written."""
    for key, value in event.items():
        event[key] = _hidden(value, _DEPTH_MAX)
    return event


def _hidden(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, Mapping) and depth > 0:
        return {_hidden(key, 0): _hidden(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple) and depth > 0:
        return [_hidden(each, depth - 1) for each in value]
    shown = repr(value)  # as whoever writes the line would: an error or a path carries text, too
    hidden = without_secrets(shown)
    return value if hidden == shown else hidden
