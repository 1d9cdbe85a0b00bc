"""Asking the control process that runs on this machine, if one does."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.error import URLError

import msgspec

from ringrift.errors import Unavailable
from ringrift.settings import get_settings
from ringrift.web.address import read_address

ANSWER_S_MAX = 5.0


def running_status() -> dict[str, Any] | None:
    """Return the status of the running control process; None if none runs on this data folder."""
    address = read_address(get_settings().coordination_dir)
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address.url}/status", timeout=ANSWER_S_MAX) as answer:
            status: dict[str, Any] = msgspec.json.decode(answer.read(), type=dict)
    except (URLError, TimeoutError, ConnectionError, msgspec.DecodeError) as error:
        raise Unavailable(
            f"process {address.pid} should answer on {address.url} and does not ({error})"
        ) from None
    return status
