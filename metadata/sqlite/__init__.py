"""The driver for a cluster on one machine, whose metadata are in a SQLite file."""
