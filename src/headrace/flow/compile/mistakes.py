"""A mistake in a flow's function, reported with the line of the user's code if Spark knows that line."""

from __future__ import annotations

from typing import Any

from headrace.flow.compile.plan import nodes
from headrace.model.code_references import first_line_using
from headrace.model.declarations import Flow
from headrace.model.errors import AppError, SourceLocation

__all__ = ["FlowMistake", "first_line", "line_of", "line_using"]


class FlowMistake(AppError):
    code = "HR-APP-FLOW"


def line_of(flow: Flow, expression: Any, *around: Any, name: str = "") -> SourceLocation | None:
    """Return the user's line of the expression, of an expression ``around`` it (innermost first), or of a part of it.

    If Spark does not know these lines, return the line where the flow's function first uses ``name``; otherwise the
    line that declares the flow.
    """
    locations = (_origin(flow, part) for part in (expression, *around, *nodes(expression)))
    return next(filter(None, locations), None) or line_using(flow, name)


def line_using(flow: Flow, *names: str) -> SourceLocation | None:
    """Return the line where the flow's function first uses one of the names; otherwise the line of the flow."""
    code = getattr(flow.function, "__code__", None)
    if code is None:
        return flow.location
    lines = (first_line_using(code, name) for name in names if name)
    line = next(filter(None, lines), None)
    return flow.location if line is None else SourceLocation(code.co_filename, line)


def _origin(flow: Flow, expression: Any) -> SourceLocation | None:
    context = expression.origin().pysparkErrorContext()
    if flow.location is None or not context.isDefined():
        return None
    file, _, line = str(context.get()._2()).rpartition(":")
    return SourceLocation(file, int(line)) if file == flow.location.file and line.isdecimal() else None


def first_line(text: str) -> str:
    return text.splitlines()[0].lstrip("~ ")
