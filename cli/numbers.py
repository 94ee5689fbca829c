"""Options that are numbers."""

import math

import typer


def number(value: float | None) -> float | None:
    """The callback of options that are numbers: refuses NaN, which lies in every range.

    Raises
    ------
    typer.BadParameter
        It is not a number.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter("'nan' is not a number")
    return value
