"""Examining a game, a network and their data."""
