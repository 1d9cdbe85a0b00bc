"""What the machines have, and what is done when it runs short."""
