"""The metadata store: its interface, and what all drivers share."""
