"""Loading a command's module only when that command is called, so that a quick one stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is: `module:name` of a function or of a `typer.Typer`."""

    entry: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        module, _, attribute = self.entry.partition(":")
        found: Callable[..., None] | typer.Typer = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name, context_settings=dict(self.settings))(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = name
        return command


def group_of(places: Mapping[str, Place]) -> type[TyperGroup]:
    """A group whose commands are those of *places*, in that order."""

    class OnDemandGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (of the interface)
            return list(places)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (of the interface)
            place = places.get(cmd_name)
            return None if place is None else place.load(cmd_name)

    return OnDemandGroup
