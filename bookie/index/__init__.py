"""The index: where each stored entry lies in the entry logs."""
