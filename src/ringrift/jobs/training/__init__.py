"""Training: from positions with their targets to weights."""
