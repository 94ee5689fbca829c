"""Partitions that this gateway leads: their batches, from the producer to the log and from the log to consumers."""
