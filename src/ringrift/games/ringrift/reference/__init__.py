"""The rules in plain Python, written to be read beside the rules' text; slow, and the judge of the core."""
