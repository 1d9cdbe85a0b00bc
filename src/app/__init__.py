"""The import paths of the RingRift documents, each leading to its home in `ringrift`."""
