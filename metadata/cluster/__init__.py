"""The documents about bookies and principals."""
