"""The writer of a log: its front, its life, and its leader's lock; the same for both layouts."""
