"""Who does it: workers and their jobs, the limits of both, and how they are shared."""
