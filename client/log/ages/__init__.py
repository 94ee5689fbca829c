"""The ages of the entries of a log (rule P19)."""
