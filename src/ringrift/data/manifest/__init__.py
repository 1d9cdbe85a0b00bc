"""What exists, where verified copies of it are, and how it gets into the manifest."""
