"""RingRift coordination: runs a self-play training cluster by itself."""
