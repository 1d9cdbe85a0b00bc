"""Jobs: programs that read artifacts and parameters, report progress, and write sealed artifacts."""
