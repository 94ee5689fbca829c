"""Puts the parts of a writer together, as the kind of its ledger needs them."""
