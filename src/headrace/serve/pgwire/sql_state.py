"""Errors as PostgreSQL's clients know them: each of ours has the state of the one that is nearest."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.serve.pgwire import frames

__all__ = ["Trouble", "Troubled", "trouble_of"]

_STATES = {
    "HR-SERVE-SQL-REFUSED": "25006",
    "HR-SERVE-SQL": "42601",
    "HR-SERVE-SQL-LIMIT": "54000",
    "HR-SERVE-SQL-TIME": "57014",
    "HR-SERVE-SQL-ENDED": "53200",
    "HR-SERVE-NOT-THERE": "42P01",
    "HR-SERVE-SCOPE": "42501",
    "HR-SERVE-BUSY": "53300",
    "HR-SERVE-SHARE": "53400",
    "HR-SERVE-DRAINING": "57P01",
    "HR-SERVE-NOT-SERVING": "55000",
    "HR-SERVE-MOVED": "40001",
    "HR-SERVE-LATE": "57014",
    "HR-SERVE-AFTER": "22023",
    "HR-SERVE-AFTER-OUTDATED": "22023",
    "HR-VIEW-QUESTION": "0A000",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    state: str
    message: str
    detail: str = ""
    hint: str = ""

    def told(self) -> bytes:
        return frames.error(self.state, self.message, detail=self.detail, hint=self.hint)


class Troubled(Exception):
    """For what only this protocol has."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


def trouble_of(error: HeadraceError) -> Trouble:
    state = _STATES.get(error.code, "XX000")
    return Trouble(state, f"{error.message} [{error.code}]", error.detail, error.hint)
