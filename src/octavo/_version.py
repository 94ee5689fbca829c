"""The one place that holds the version of the distribution."""

__version__ = "0.1.0"

RELEASES = ("0.1",)
"""All releases in order, the last of them this one. A release reads what it and the release before it wrote."""
