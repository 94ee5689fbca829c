"""The storage of one bookie, assembled from journal, cache, entry logs and index around one manifest."""
