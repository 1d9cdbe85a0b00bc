"""Work: roles that only one process may hold."""
