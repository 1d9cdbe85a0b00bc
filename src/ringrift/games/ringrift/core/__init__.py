"""The compiled rules. A state is one row of 64-bit words; a batch of games is a table of such rows."""
