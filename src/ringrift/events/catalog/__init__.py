"""The catalog of events, and what is made from it."""
