"""Who runs, and who restarts them."""
