"""Connect four: the smallest game here, and the example of how to add one."""
