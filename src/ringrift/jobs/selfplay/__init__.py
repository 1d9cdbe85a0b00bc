"""Self-play, what it hands over, and its searches done again."""
