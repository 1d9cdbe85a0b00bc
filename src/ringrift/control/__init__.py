"""The control process: who controls, what the run was asked to do, start and end."""
