"""Game shards: sealed SQLite files of whole games."""
