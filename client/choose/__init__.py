"""Choosing the bookies of an ensemble."""
