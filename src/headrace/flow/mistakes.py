"""A mistake in a flow's function, shown at the user's own line where Spark knows it."""

from __future__ import annotations

from typing import Any

from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.place import Place

__all__ = ["FlowMistake", "first_line", "line_of"]


class FlowMistake(AppError):
    code = "HR-APP-FLOW"


def line_of(flow: Flow, expression: Any) -> Place | None:
    """Where the user wrote the expression, or a part of it; else where the flow is."""
    if flow.place is None:
        return None
    waiting = [expression]
    while waiting:
        one = waiting.pop(0)
        told = one.origin().pysparkErrorContext()
        if told.isDefined():
            file, _, line = str(told.get()._2()).rpartition(":")
            if file == flow.place.file and line.isdecimal():
                return Place(file, int(line))
        children = one.children()
        waiting += [children.apply(at) for at in range(children.size())]
    return flow.place


def first_line(text: str) -> str:
    return text.splitlines()[0].lstrip("~ ")
