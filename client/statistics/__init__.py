"""The values that ``statistics()`` of a client, a log, a writer and a reader returns."""
