"""The front of a writer: room for adds, their batches, adds that wait for lower ids."""
