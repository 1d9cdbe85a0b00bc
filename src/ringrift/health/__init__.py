"""Health of components and of the whole system."""
