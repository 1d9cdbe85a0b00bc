"""The loop: what to play, check, export, train, evaluate and promote next, and why."""
