"""Repair: copies that were lost come back by themselves. Runs in every bookie process."""
