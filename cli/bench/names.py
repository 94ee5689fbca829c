"""Names that ledgers of benchmarks have."""

BENCH_KEY = "octavo.bench"
"""Custom metadata key of ledgers that a benchmark has written."""
