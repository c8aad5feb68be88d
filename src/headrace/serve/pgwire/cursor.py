"""Cursors by name, as statements: DECLARE, FETCH, MOVE and CLOSE. Forward only; all rows are of the first FETCH."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Declared", "Fetched", "declared", "fetched", "name_of"]

NAME = r'"(?:[^"]|"")+"|[A-Za-z_][\w$]*'
_DECLARE = re.compile(
    rf"declare\s+({NAME})\s+((?:(?:binary|insensitive|asensitive|no\s+scroll|scroll)\s+)*)cursor\s+"
    r"(?:(with|without)\s+hold\s+)?for\s+(.*)",
    re.I | re.S,
)
_FETCH = re.compile(
    rf"(?:fetch|move)\s+(?:(next|(?:forward\s+)?all|(?:forward\s+)?[0-9]{{1,9}}|forward)\s+)?(?:(?:from|in)\s+)?({NAME})",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Declared:
    name: str
    sql: str
    binary: bool
    hold: bool
    """Whether it outlives its transaction."""


@dataclass(frozen=True, slots=True)
class Fetched:
    name: str
    rows_max: int
    """0 for all that are left."""
    moves: bool
    """Past them, and they are not sent."""


def declared(text: str) -> Declared | None:
    """None for what is no DECLARE."""
    found = _DECLARE.fullmatch(text)
    if found is None:
        return None
    return Declared(
        name_of(found[1]), found[4], "binary" in found[2].lower(), (found[3] or "").lower() == "with"
    )


def fetched(text: str) -> Fetched | None:
    """None for what is no FETCH or MOVE, or not forward."""
    found = _FETCH.fullmatch(text)
    if found is None:
        return None
    told = (found[1] or "next").lower().split()[-1]
    rows = {"next": 1, "forward": 1, "all": 0}.get(told)
    if rows is None:
        rows = int(told)
        if rows == 0:
            return None
    moves = text[:4].lower() == "move"
    return None if moves and rows == 0 else Fetched(name_of(found[2]), rows, moves)


def name_of(told: str) -> str:
    if told.startswith('"'):
        return told[1:-1].replace('""', '"')
    return told.lower()
