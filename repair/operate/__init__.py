"""Repair as operators see and direct it."""
