"""The journal: every change is durable here before the bookie acknowledges it."""
