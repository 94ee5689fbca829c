"""Which bookie a directory belongs to, and whether it may start."""
