"""A finding of ``headrace doctor``. Its state is ok, missing or optional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State", "fine", "missing", "optional"]

State = Literal["ok", "missing", "optional"]


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    text: str
    hint: str = ""
    """The next step, if any."""


def fine(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def missing(check: str, text: str, hint: str) -> Finding:
    return Finding(check, "missing", text, hint)


def optional(check: str, text: str, hint: str) -> Finding:
    """An improvement that the app does not require."""
    return Finding(check, "optional", text, hint)
