"""A worker process: its slots, claims, records and recovery."""
