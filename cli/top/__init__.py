"""``octavo top``: what bookies and logs are doing, again and again."""
