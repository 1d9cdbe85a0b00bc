"""The `ringrift` command."""
