"""The bookie that a directory belongs to, and whether that bookie may start."""
