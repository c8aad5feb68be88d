"""What the doctor found: it is there, it is missing, or one can do without."""

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
    """The next step, where there is one."""


def fine(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def missing(check: str, text: str, hint: str) -> Finding:
    return Finding(check, "missing", text, hint)


def optional(check: str, text: str, hint: str) -> Finding:
    """Not as good as it could be, and nothing fails for it."""
    return Finding(check, "optional", text, hint)
