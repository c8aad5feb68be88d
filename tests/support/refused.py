"""The one error that every client adapter raises when the server refuses: Kafka's number, under any client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Refused", "refusal"]


class Refused(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """The error number that a call is refused with, and 0 if it is not refused."""
    try:
        call(*arguments, **options)
    except Refused as refused:
        return refused.code
    return 0
