"""Every query of the key-value store. A row without a value is a deleted key."""

NEXT_REVISION = "UPDATE counter SET value = value + 1 WHERE name = 'revision' RETURNING value"
REVISION = "SELECT value FROM counter WHERE name = 'revision'"
LAST_REVISION_OF = "SELECT revision FROM kv WHERE key = ?"

ALIVE = "value IS NOT NULL AND (expires_s IS NULL OR expires_s > ?)"
UNDER_PREFIX = "key >= ? AND key < ?"
_ENTRY = "key, value, revision, expires_s, checksum"
GET = f"SELECT {_ENTRY} FROM kv WHERE key = ? AND {ALIVE}"
GET_WITHOUT_CHECKSUM = f"SELECT value FROM kv WHERE key = ? AND {ALIVE}"
LIVE_REVISION_OF = f"SELECT revision FROM kv WHERE key = ? AND {ALIVE}"
KEYS = f"SELECT key FROM kv WHERE {UNDER_PREFIX} AND {ALIVE} ORDER BY key"
ENTRIES = f"SELECT {_ENTRY} FROM kv WHERE {UNDER_PREFIX} AND {ALIVE} ORDER BY key"
STORE = (
    "INSERT INTO kv(key, revision, expires_s, changed_s, value, checksum) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT(key) DO UPDATE SET revision = excluded.revision, expires_s = excluded.expires_s,"
    " changed_s = excluded.changed_s, value = excluded.value, checksum = excluded.checksum"
)
# Without the hint SQLite may walk all keys under the prefix to find the few that changed.
CHANGES = (
    f"SELECT {_ENTRY} FROM kv INDEXED BY kv_revision"
    f" WHERE revision > ? AND {UNDER_PREFIX} ORDER BY revision LIMIT ?"
)

DUE = "SELECT key FROM kv WHERE expires_s <= ? ORDER BY expires_s, key LIMIT ?"
NEXT_DUE = "SELECT min(expires_s) FROM kv WHERE expires_s IS NOT NULL"
DROP_TOMBSTONES = "DELETE FROM kv WHERE value IS NULL AND changed_s < ?"
