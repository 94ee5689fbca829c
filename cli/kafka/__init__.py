"""`octavo topic` and `octavo group`, and the process of `octavo gateway`."""
