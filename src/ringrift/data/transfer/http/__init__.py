"""Files between nodes over signed HTTP: the client, the data server, and what they say to each other."""
