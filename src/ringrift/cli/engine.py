"""`ringrift engine`: the store of many machines, on NATS JetStream."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ringrift.cli.command import PATH, as_json, on_data_folder, plain_errors, print_json
from ringrift.cli.format import print_table
from ringrift.coordination.coordinator_config import get_settings
from ringrift.errors import ConfigError
from ringrift.runtime import system_runtime

EXIT_AT_RISK = 1


@click.group(no_args_is_help=True)
def engine() -> None:
    """The store of many machines, on NATS JetStream. This version's run does not use it yet."""


@engine.command("up")
@on_data_folder
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=4222, show_default=True, type=click.IntRange(1, 65535))
def up(host: str, port: int) -> None:
    """Start a NATS server here, set up safely, until interrupted."""
    with plain_errors():
        folder = get_settings().data_dir / "nats"
        server = _server_module().local_server(folder, host=host, port=port)
    click.echo(f"{server.url}   (data in {folder})")
    os.execv(server.argv[0], server.argv)


@engine.command("check")
@as_json
@click.option("--creds", type=PATH, metavar="FILE", help="Credentials file of a user.")
@click.option("--ca", type=PATH, metavar="FILE", help="Certificates that the server is trusted by.")
@click.argument("url")
def check(url: str, creds: Path | None, ca: Path | None, as_json: bool) -> None:
    """Whether the server at URL is set up safely: copies, access, limits, what it can do.

    URL is nats://HOST:PORT, nats://TOKEN@HOST:PORT or nats://USER:PASSWORD@HOST:PORT; several with commas.
    """
    with plain_errors():
        module, link = _server_module(), import_module("ringrift.engine.nats.link")
        config = link.NatsConfig(servers=tuple(url.split(",")), blob_dir=Path(), credentials=creds, tls_ca=ca)
        found = module.check_server(config, new_id=system_runtime().new_id)
    if as_json:
        print_json([{"what": each.what, "verdict": each.verdict, "text": each.text} for each in found])
    else:
        print_table("", ["", "", ""], [[each.what, each.verdict, each.text] for each in found])
    if any(each.verdict in (module.ServerVerdict.RISK, module.ServerVerdict.WRONG) for each in found):
        raise SystemExit(EXIT_AT_RISK)


def _server_module() -> Any:
    """Loaded by the command alone: it needs the extra `cluster`."""
    try:
        return import_module("ringrift.engine.nats.server")
    except ModuleNotFoundError as error:
        if error.name != "nats":
            raise
        raise ConfigError("the engine on NATS needs nats-py: pip install 'ringrift[cluster]'") from None
