"""Consumer groups that this gateway coordinates: their members' requests, and the logs that keep what must last."""
