"""The source ``octavo``: reads ledgers and logs, in batches and in streaming queries."""
