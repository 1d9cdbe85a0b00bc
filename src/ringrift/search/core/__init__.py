"""The compiled part of the search."""
