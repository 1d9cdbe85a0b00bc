"""Networks that judge positions: their layers, their files, and their use in a search."""
