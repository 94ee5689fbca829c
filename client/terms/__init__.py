"""Streams: ledgers that several writers write one after another, each in a term of its own."""
