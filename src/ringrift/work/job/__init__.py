"""One job: its order, folder, program, process and what it says."""
