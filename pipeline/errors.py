"""What can go wrong in the pipeline and nowhere else."""

from octavo.protocol.errors import OctavoError


class DataLossError(OctavoError):
    """An entry that was to be read cannot be had: its ledger is gone, or no bookie that should hold it gives it. With
    the option ``failOnDataLoss=false`` it becomes a row without a value."""
