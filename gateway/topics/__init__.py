"""Topics: their documents, and the logs that are their partitions."""
