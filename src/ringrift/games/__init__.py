"""The games: one contract, RingRift, connect four; only jobs and tools import this package."""
