"""Closing a ledger without its writer."""
