"""Commands about files and their copies."""
