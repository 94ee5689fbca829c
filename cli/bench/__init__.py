"""`octavo bench`: measure throughput and latency of a cluster."""
