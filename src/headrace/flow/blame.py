"""Where in the user's own files something went wrong while a flow ran.

An error in the function itself has a trace in this process. One in a function that is called for each row happened in a
process of Spark's, and comes as text, with the trace in it.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.place import Place

__all__ = ["blame"]

_TOLD = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9})')
_TEXT_MAX = 200_000
_CAUSES_MAX = 10


def blame(flow: Flow, error: BaseException) -> Place | None:
    """The innermost line of the flow's file, or of one beside it; else where the flow is declared."""
    if isinstance(error, AppError) and error.place is not None:
        return error.place
    if flow.place is None:
        return None
    found = [place for one in _causes(error) for place in _lines(one)]
    declared = flow.place
    theirs = [one for one in found if one.file == declared.file]
    theirs = theirs or [one for one in found if _is_beside(declared.file, one.file)]
    return theirs[-1] if theirs else declared


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what led to it."""
    one: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _lines(error: BaseException) -> Iterator[Place]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield Place(frame.filename, frame.lineno or 0)
    for file, line in _TOLD.findall(str(error)[:_TEXT_MAX]):
        yield Place(file, int(line))


def _is_beside(file: str, other: str) -> bool:
    """In its folder or below, and not installed there."""
    folder = str(Path(file).parent) + os.sep
    return other.startswith(folder) and "site-packages" not in other[len(folder) :]
