"""The engine in memory: deterministic, without threads, the reference for the contract."""

from ringrift.engine.memory.engine import MemoryStore, memory_engine

__all__ = ["MemoryStore", "memory_engine"]
