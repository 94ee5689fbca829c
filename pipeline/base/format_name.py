"""The name of the data source, apart from the modules that need PySpark. Pure."""

from typing import Final

FORMAT_NAME: Final = "octavo"
"""``spark.read.format("octavo")``."""
