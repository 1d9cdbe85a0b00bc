"""Tree search over many games at once, and the loop that plays games with it."""
