"""What is said: the event catalog, the router, dead letters, tracing."""
