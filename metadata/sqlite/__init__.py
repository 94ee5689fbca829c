"""The driver for clusters on one machine, which keeps the metadata in a SQLite file."""
