"""The embedded engine: one SQLite database in WAL mode and one folder of blobs, for many processes."""

from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.engine import open_sqlite

__all__ = ["SqliteConfig", "open_sqlite"]
