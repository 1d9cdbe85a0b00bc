"""The embedded engine: one SQLite database in WAL mode and one folder of blobs, for many processes."""
