"""The metadata of a cluster as tables."""
