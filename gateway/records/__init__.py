"""Record batches, their offsets, and what a partition remembers of its producers. All of it is pure."""
