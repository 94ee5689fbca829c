"""The example of ``octavo.pipeline.register`` runs."""

import asyncio

from octavo.pipeline import register
from pyspark.sql import SparkSession
from support.docstring_examples import examples_in, play


def test_the_example_of_register_runs(spark: SparkSession) -> None:
    examples = examples_in(register.__doc__ or "")
    assert asyncio.run(play(examples, {"spark": spark})) == []
