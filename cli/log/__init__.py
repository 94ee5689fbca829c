"""`octavo log`: create, lead, read, follow, truncate and inspect logs."""
