"""The rows of a flow as they were derived again, and how much of what there should be they tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pyspark.sql import DataFrame

from headrace.flow.gone import Gone
from headrace.flow.lineage import lineage_columns
from headrace.flow.operators import Operators
from headrace.model.progress import Batch

__all__ = ["ALL", "NOTHING", "TIE", "Derived", "Extent"]

TIE = "_headrace_tie"
"""What orders rows that have the same coordinates: of one event, joined with several rows of a table."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which keys the derived rows are the last word on."""

    kind: Literal["all", "derived keys", "later times", "nothing"]
    """``derived keys``: those that are derived; others may come from input that is gone.
    ``later times``: those whose ``field`` is above ``above``, whether they are derived or not.
    """
    field: str = ""
    above: str = ""


ALL, NOTHING = Extent("all"), Extent("nothing")


@dataclass(slots=True)
class Derived:
    rows: DataFrame
    """``key`` and ``value`` as the topic has them (a null value deletes), one for each row that the function gave, and
    the columns of their ``order``. On disk until ``close``."""
    count: int
    row_bytes: int
    """On average."""
    through: Batch
    after: Batch | None
    """The rows are those of the batches behind this one; None for all of them."""
    extent: Extent
    operators: Operators
    records: int
    """Of the inputs, that were read."""
    late: int
    dead: int
    gone: tuple[Gone, ...] = ()
    mistakes: tuple[str, ...] = ()
    """Where what was read now does not agree with what the flow has counted."""
    held: list[DataFrame] = field(default_factory=list)

    @property
    def order(self) -> list[str]:
        """The columns by which the rows of a key follow each other; none where a key has one row."""
        ties = [TIE] if TIE in self.rows.columns else []
        return [*lineage_columns(self.rows), *ties]

    def close(self) -> None:
        for frame in self.held:
            frame.unpersist()
