"""A mistake in a flow's function, shown at the user's own line where Spark knows it."""

from __future__ import annotations

from typing import Any

from headrace.flow.code_references import line_naming
from headrace.flow.plan_tree import children
from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.place import Place

__all__ = ["FlowMistake", "first_line", "line_naming_in", "line_of"]


class FlowMistake(AppError):
    code = "HR-APP-FLOW"


def line_of(flow: Flow, expression: Any, *around: Any, name: str = "") -> Place | None:
    """Where the user wrote the expression, or a part of it, or one of those ``around`` it, innermost first. Spark does
    not know the line of every function: then where the flow's function first says its ``name``; else where the flow is.
    """
    waiting = [expression]
    while waiting:
        one = waiting.pop(0)
        if place := _origin(flow, one):
            return place
        waiting += children(one)
    places = (_origin(flow, one) for one in around)
    return next(filter(None, places), None) or line_naming_in(flow, name)


def line_naming_in(flow: Flow, *names: str) -> Place | None:
    """Where the flow's function first writes one of the names; else where the flow is."""
    code = getattr(flow.function, "__code__", None)
    if code is None:
        return flow.place
    lines = (line_naming(code, name) for name in names if name)
    line = next(filter(None, lines), None)
    return flow.place if line is None else Place(code.co_filename, line)


def _origin(flow: Flow, expression: Any) -> Place | None:
    told = expression.origin().pysparkErrorContext()
    if flow.place is None or not told.isDefined():
        return None
    file, _, line = str(told.get()._2()).rpartition(":")
    return Place(file, int(line)) if file == flow.place.file and line.isdecimal() else None


def first_line(text: str) -> str:
    return text.splitlines()[0].lstrip("~ ")
