"""Commands about what a run learns and decides."""
