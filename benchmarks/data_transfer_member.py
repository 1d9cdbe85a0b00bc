"""A node of `data_transfer.py`: `serve` receives; `send PORT [PIN]` sends what its input names."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from ringrift.coordination.coordinator_config import get_settings
from ringrift.data.artifacts import Artifact
from ringrift.data.config import DataNode
from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.http.client import HttpTransport
from ringrift.data.transfer.http.server import create_data_server
from ringrift.data.transfer.http.wire import data_secret
from ringrift.data.transfer.receiving import open_intake
from ringrift.runtime import SystemRuntime


async def send_what_is_named(port: int, pin: str = "") -> None:
    settings, runtime = get_settings(), SystemRuntime()
    intake = open_intake(settings, runtime, node="sender")
    transport = HttpTransport(intake, secret=data_secret(settings), runtime=runtime)
    receiver = DataNode(name="receiver", ssh_host="127.0.0.1", data_port=port, data_tls_sha256=pin)
    for line in iter(sys.stdin.readline, ""):
        artifacts = [Artifact(digest=digest, size=size) for digest, size in json.loads(line)]
        started_s = time.perf_counter()
        moved = await transport.send(receiver, artifacts, Terms())
        seconds = time.perf_counter() - started_s
        arrived = len(moved.receipts) + len(moved.already_there)
        print(json.dumps({"seconds": seconds, "arrived": arrived, "failed": moved.failed}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(create_data_server().run())
    else:
        asyncio.run(send_what_is_named(int(sys.argv[2]), *sys.argv[3:]))
