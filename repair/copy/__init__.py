"""The target: copies entries, and takes the name of a member."""
