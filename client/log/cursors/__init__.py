"""The cursors of a log: what consumers have processed."""
