"""Work in the background: garbage collection, compaction, scrubbing, the watch over free space."""
