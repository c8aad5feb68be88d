"""How many rows there are, and how large they are, so that they can be taken in pieces."""

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
    """About how large a row is."""
    return size // count if count else _UNKNOWN_BYTES
