"""The secret that the nodes of a cluster share, and that each must prove to know."""

from __future__ import annotations

from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.private_files import secret_in
from ringrift.settings import Settings

SECRET_FILE = "data_secret"


def data_secret(settings: Settings) -> bytes:
    """Return the secret of the settings, or that of the data folder, made fresh if there is none."""
    if settings.data_secret is not None:
        return settings.data_secret.text.encode()
    path = settings.data_dir / SECRET_FILE
    with told_in_our_words(path):
        return secret_in(path).encode()
