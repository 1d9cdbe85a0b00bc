"""What a config should do next, and why: pure decisions on what is known."""
