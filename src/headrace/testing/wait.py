"""Waits until a value is as expected, instead of sleeping for a fixed time. A failure shows the last value."""

from __future__ import annotations

import pprint
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["eventually"]

T = TypeVar("T")
_PAUSE_SHARE = 0.04
_PAUSE_S_MAX = 0.2
_SHOWN_CHARS_MAX = 4_000


_TRUE = object()


def eventually(
    read: Callable[[], T],
    expected: Any = _TRUE,
    *,
    what: str = "",
    timeout_s: float = 60.0,
    pause_s: float = 0.02,
    retry: tuple[type[Exception], ...] = (AssertionError,),
    check: Callable[[], None] | None = None,
) -> T:
    """Call ``read`` until its value is as expected, and return the value. Raise ``AssertionError`` after ``timeout_s``.

    ``expected`` is a value to equal, or a function of the value that returns whether it is as expected. Without
    ``expected``, the value must be true. ``retry`` has the errors of ``read`` that count as not yet; any other error is
    raised at once. ``check`` raises ``AssertionError`` when the value can never become as expected, for example because
    a process has ended.

        eventually(lambda: shop.row("pages", "/"), {"page": "/", "visits": 2})
        eventually(lambda: shop.rows("pages"), lambda rows: len(rows) == 2)

    The pauses grow with the elapsed time, because many reads send requests, and a longer pause delays a long wait only
    a little.
    """
    started = time.monotonic()
    attempts = 0
    while True:
        attempts += 1
        matches, value, failure = _attempt(read, expected, retry)
        if matches:
            return value  # type: ignore[return-value]
        if check is not None:
            try:
                check()
            except AssertionError:
                # The value might have become as expected just before the end.
                matches, value, failure = _attempt(read, expected, retry)
                if matches:
                    return value  # type: ignore[return-value]
                raise
        elapsed_s = time.monotonic() - started
        if elapsed_s > timeout_s:
            message = f"{what or 'the value'}: not as expected within {timeout_s:g} s ({attempts:,} attempts)"
            raise AssertionError(f"{message}{_lines(expected, value, failure)}") from failure
        time.sleep(max(pause_s, min(_PAUSE_S_MAX, _PAUSE_SHARE * elapsed_s)))


def _attempt(
    read: Callable[[], T], expected: Any, retry: tuple[type[Exception], ...]
) -> tuple[bool, T | None, Exception | None]:
    try:
        value = read()
    except retry as failure:
        return False, None, failure
    if expected is _TRUE:
        return bool(value), value, None
    if callable(expected):
        return bool(expected(value)), value, None
    return bool(value == expected), value, None


def _lines(expected: Any, value: Any, failure: Exception | None) -> str:
    shown = [] if expected is _TRUE or callable(expected) else [f"\nexpected:   {_shown(expected)}"]
    last = f"{type(failure).__name__}: {failure}" if failure is not None else _shown(value)
    return "".join([*shown, f"\nlast value: {last}"])


def _shown(value: Any) -> str:
    text = pprint.pformat(value, width=100, sort_dicts=False)
    cut = len(text) > _SHOWN_CHARS_MAX
    text = text[:_SHOWN_CHARS_MAX] + (" ..." if cut else "")
    return text.replace("\n", "\n            ")
