"""Ends the doubt of a bookie that has lost entries."""
