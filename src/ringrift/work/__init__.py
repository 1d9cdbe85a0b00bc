"""Who does it: workers and their jobs, the limits of both, and roles that only one process may hold."""
