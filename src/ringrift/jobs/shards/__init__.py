"""Game shards: sealed SQLite files of whole games; written, read, checked, merged."""
