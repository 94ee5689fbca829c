"""Observing and administering a running bookie: metrics, health, and what an operator may ask of it over HTTP."""
