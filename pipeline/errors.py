"""Errors that only the pipeline raises."""

from octavo.protocol.errors import OctavoError


class DataLossError(OctavoError):
    """A selected entry cannot be read: its ledger has been deleted, or no bookie that should hold the entry returns it.
    With the option ``failOnDataLoss=false`` such an entry becomes a row without a value."""
