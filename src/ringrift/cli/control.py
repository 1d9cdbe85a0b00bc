"""Asking the control process that runs on this machine, if one does, and the link to its page."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import click
import msgspec

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.options import as_json, check_data_folder, on_data_folder
from ringrift.cli.terminal import console
from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, Unavailable
from ringrift.redaction import loaded_secret
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings
from ringrift.tls import own_files
from ringrift.web.access import CODE_S, TOKEN_FILE
from ringrift.web.address import Address, read_address

ANSWER_S_MAX = 5.0


@click.command()
@as_json
@on_data_folder
def link(as_json: bool) -> None:
    """Print a link to the live page that may also act: good once, for ten minutes."""
    with plain_errors():
        check_data_folder()
        address = read_address(get_settings().coordination_dir)
        if address is None:
            raise Unavailable(f"nothing runs in {get_settings().data_dir}; `ringrift run` prints a link, too")
        url = page_link(address)
    if as_json:
        print_json({"url": url, "good_for_s": CODE_S})
    else:
        console().print(url, markup=False, highlight=False, soft_wrap=True)


def page_link(address: Address) -> str:
    """A link that brings the page its key, once."""
    made = _ask(address, "/link", body=b"")
    # Behind the number sign, which no browser sends anywhere: neither a log nor a referrer has it.
    return f"{address.url}/#enter={made['code']}"


def running_status() -> dict[str, Any] | None:
    """Return the status of the running control process; None if none runs on this data folder."""
    address = read_address(get_settings().coordination_dir)
    return None if address is None else _ask(address, "/status")


def _ask(address: Address, path: str, *, body: bytes | None = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {_token(get_settings().data_dir / TOKEN_FILE)}"}
    request = urllib.request.Request(f"{address.url}{path}", data=body, headers=headers)
    try:
        with _opener(address).open(request, timeout=ANSWER_S_MAX) as answer:
            found: dict[str, Any] = decode_as(answer.read(), dict)
    except HTTPError as error:
        raise ConfigError(f"{address.url} refused {path} ({error.code} {error.reason})") from None
    except (URLError, TimeoutError, ConnectionError, msgspec.DecodeError) as error:
        raise Unavailable(
            f"process {address.pid} should answer on {address.url} and does not ({error})"
        ) from None
    return found


def _opener(address: Address) -> urllib.request.OpenerDirector:
    """Asks this machine directly, as a proxy would see the token; over TLS only the run's own certificate."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if address.url.startswith("https:"):
        files = own_files(get_settings(), system_runtime())
        handlers.append(urllib.request.HTTPSHandler(context=files.client_context()))
    return urllib.request.build_opener(*handlers)


def _token(path: Path) -> str:
    try:
        return loaded_secret(path.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return ""  # a run of an earlier version, which has none
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
