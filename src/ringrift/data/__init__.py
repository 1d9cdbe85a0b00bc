"""Where bytes go: sealed artifacts, who holds verified copies of them, and how they get there."""
