"""Reading and following a log, and what became of adds; the same for both layouts."""
