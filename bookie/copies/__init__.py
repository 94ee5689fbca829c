"""Copies of entries between bookies: what repair needs of the bookie on which it runs."""
