"""What a flow's function does, as a short text: two functions with the same one derive the same rows.

It is taken from Spark's plan of the function over empty inputs, so that moving code around or naming things anew
changes nothing. What runs in Python is not in the plan; where there is some, the code of the function and of what it
calls counts too.
"""

from __future__ import annotations

import hashlib
import re
from types import CodeType, FunctionType
from typing import Any

from pyspark.sql import DataFrame

from headrace.model.flow import Flow
from headrace.model.schema import Schema

__all__ = ["fingerprint"]

_SITE = ("site-packages", "dist-packages", "/lib/python")
_PYTHON_STEPS = re.compile(
    r"\b(Map\w*InArrow|Map\w*InPandas|FlatMap\w*(Pandas|Arrow|Python)\w*|TransformWithStateInPy\w*)\b"
)


def fingerprint(flow: Flow, output: DataFrame, schema: Schema) -> str:
    plan: Any = output._jdf.queryExecution().analyzed().canonicalized().toString()
    told = [plan, repr(schema.fields), repr(flow.writes.key), repr([_input(topic) for topic in flow.reads])]
    if flow.is_realtime:
        told.append(flow.latency)
    if runs_python(output):
        told.append(_code_of(flow.function, set()))
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def runs_python(output: DataFrame) -> bool:
    """Whether rows go through a function in Python, as an expression or as a step of its own."""
    analyzed: Any = output._jdf.queryExecution().analyzed()
    jvm: Any = output.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if analyzed.containsPattern(patterns.PYTHON_UDF()):
        return True
    return _PYTHON_STEPS.search(analyzed.toString()) is not None


def _input(topic: Any) -> tuple[Any, ...]:
    return (topic.name, topic.schema and topic.schema.fields, topic.key, topic.time, topic.late, topic.kind)


def _code_of(function: Any, seen: set[int]) -> str:
    """Its instructions and constants, and those of the user's own functions that it names."""
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen:
        return ""
    seen.add(id(code))
    told = [_told(code)]
    names = getattr(function, "__globals__", {})
    for name in _names(code):
        found = names.get(name)
        found = getattr(found, "func", found)
        if isinstance(found, FunctionType) and not any(part in found.__code__.co_filename for part in _SITE):
            told.append(_code_of(found, seen))
        elif isinstance(found, (int, float, str, bytes, bool, tuple, frozenset)):
            told.append(f"{name}={found!r}")
    return "\n".join(told)


def _names(code: CodeType) -> list[str]:
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    return [*code.co_names, *inner]


def _told(code: CodeType) -> str:
    constants = [_told(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
