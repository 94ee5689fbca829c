"""Tools for the directories of a stopped bookie."""
