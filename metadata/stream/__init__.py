"""The metadata of a stream, a ledger that several writers write one after another, and of its pages."""
