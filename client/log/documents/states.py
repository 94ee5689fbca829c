"""The states of a log. Pure."""

import enum


class LogState(enum.Enum):
    """Whether the log can be used."""

    MAKING = "MAKING"
    """A stream whose metadata may not stand yet. No client can open the log. Chains begin ACTIVE: they begin empty."""
    ACTIVE = "ACTIVE"
    DELETED = "DELETED"
    """Its ledgers are being deleted; the document goes last."""
