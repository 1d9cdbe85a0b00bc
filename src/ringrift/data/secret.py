"""The secret that the nodes of a cluster share, and that each must prove to know."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import ConfigError
from ringrift.setting_kinds import SECRET_LETTERS_MIN
from ringrift.settings import Settings

SECRET_FILE = "data_secret"
_FRESH_BYTES = 32
_OWNER_ONLY = 0o600


def data_secret(settings: Settings) -> bytes:
    """Return the secret of the settings, or that of the data folder, made fresh if there is none."""
    if settings.data_secret is not None:
        return settings.data_secret.text.encode()
    path = settings.data_dir / SECRET_FILE
    with told_in_our_words(path):
        if not path.exists():
            _make(path)
        text = path.read_text(encoding="utf-8").strip()
    if len(text) < SECRET_LETTERS_MIN:
        raise ConfigError(f"{path} has fewer than {SECRET_LETTERS_MIN} letters; remove it to get a fresh one")
    return text.encode()


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(_FRESH_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(making, path)
    except FileExistsError:
        return  # another process was first, and its secret is as good
    finally:
        making.unlink(missing_ok=True)
