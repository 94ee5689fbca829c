"""The answers to requests: what each asks of topics and of partitions that are led."""
