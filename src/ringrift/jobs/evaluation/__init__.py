"""Playing strength measured by matches: of a candidate, or of all against all."""
