"""The settings that coordinators read, under the documents' names. A view: the values live in `Settings`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringrift.process import process_scope, reset_of
from ringrift.settings import Settings, read_settings

__all__ = ["CoordinatorConfig", "get_config"]


def get_settings() -> Settings:
    """Return the settings of this process, read once."""
    return process_scope().get(Settings, read_settings)


reset_settings = reset_of("reset_settings", Settings)


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What coordinators may want to know."""

    settings: Settings = field(default_factory=get_settings)

    @property
    def auto_trigger_pipeline(self) -> bool:
        return self.settings.auto_trigger_pipeline

    @property
    def db_path(self) -> Path:
        return self.settings.coordinator_db

    @property
    def dlq_path(self) -> Path:
        return self.settings.dlq_path

    @property
    def trace_debug(self) -> bool:
        return self.settings.trace_debug


def get_config() -> CoordinatorConfig:
    """Return the view of this process's settings."""
    return CoordinatorConfig(get_settings())
