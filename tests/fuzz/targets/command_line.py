"""Command lines: parsed, or refused as wrong use. Nothing is carried out here; `make commands` does that."""

import os

import click

from ringrift.cli.main import app


def seeds() -> list[bytes]:
    lines = [
        ["run", "--configs", "square8_2p,hex8_2p", "--for", "10m", "--workers", "2"],
        ["status", "--json"],
        ["data", "sync", "one", "--limit-mbps", "3"],
        ["data", "backup", "archive", "--prepare"],
        ["recall", "--worker", "w1", "--reason", "broken", "--yes"],
        ["models", "show", "square8_2p", "ab12"],
        ["events", "dlq", "list"],
        ["queue", "--json", "list"],
        ["replay", "square8_2p", "--at", "12"],
        ["tune", "square8_2p", "--help"],
    ]
    return ["\0".join(line).encode() for line in lines]


def run(data: bytes) -> None:
    """Words are separated by zero bytes, as no word can hold one."""
    words = [os.fsdecode(word) for word in data.split(b"\0")[:20]]
    command: click.Command = app
    context: click.Context | None = None
    try:
        while True:
            context = command.make_context(command.name or "ringrift", list(words), parent=context)
            if not isinstance(command, click.Group):
                return
            words = [*context._protected_args, *context.args]
            if not words:
                return
            _, inner, words = command.resolve_command(context, words)
            if inner is None:
                return
            command = inner
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        return
