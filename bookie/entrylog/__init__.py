"""Entry logs: the files that hold entries for good."""
