"""Flows on Spark: topics in, topics out, exactly once. Only here and in the checks of ``ops`` is PySpark imported."""
