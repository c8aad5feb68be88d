"""Rows that are held in Python, as a DataFrame: through Arrow, so that no Python process has to give them to Spark, and
Spark knows how many there are and sends few of them to where they are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["local_rows"]


def local_rows(spark: SparkSession, rows: Sequence[Mapping[str, Any]], shape: T.StructType) -> DataFrame:
    """``rows`` are as Arrow gives them: names to values, maps as pairs."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(shape, timezone="UTC")), shape)
