"""What happened to each config: the facts, what they add up to, and how they are kept and checked."""
