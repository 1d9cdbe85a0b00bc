"""Bringing data from node to node: what is brought where, in which order, and by whom."""
