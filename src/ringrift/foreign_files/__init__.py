"""Files that somebody else wrote: opened, measured and refused here, before anybody believes them."""
