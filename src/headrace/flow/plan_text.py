"""What Spark has made of a flow's function, as a text for people: the physical plan, each step with its details."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["last_execution", "plan_text"]

_CUT = "\n... (cut: the plan is longer)"


def last_execution(query: StreamingQuery) -> Any:
    """Of the batch that ran last; None before the first."""
    asked: Any = query._jsq
    return asked.streamingQuery().lastExecution()


def plan_text(spark: SparkSession, execution: Any, chars_max: int) -> str | None:
    if execution is None:
        return None
    jvm: Any = spark._jvm
    mode = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    told = str(execution.explainString(mode))
    return told if len(told) <= chars_max else told[: chars_max - len(_CUT)] + _CUT
