"""The memory of a bookie that answers and unfinished frames may hold, and who waits for it."""
