"""HTTP: the live page, probes, metrics, events."""
