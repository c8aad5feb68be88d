"""The number and the size of rows, to split them into pieces of limited bytes."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["average", "measured"]

_UNKNOWN_BYTES = 1024


def measured(rows: DataFrame) -> tuple[int, int]:
    """The number of rows, and the bytes of their columns ``key`` and ``value``."""
    sizes = [F.coalesce(F.octet_length(name), F.lit(0)).cast("long") for name in ("key", "value")]
    (found,) = rows.agg(F.count(F.lit(1)), F.sum(sizes[0] + sizes[1])).collect()
    return int(found[0]), int(found[1] or 0)


def average(count: int, size: int) -> int:
    """The average bytes of a row; a guess if there are no rows."""
    return size // count if count else _UNKNOWN_BYTES
