"""Rows of a query over the views' SQLite file, read only, for a display."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Watched", "watched"]

_ROWS = 10


@dataclass(frozen=True, slots=True)
class Watched:
    sql: str
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[object, ...]] = field(default_factory=list)
    trouble: str = ""


def watched(path: Path, sql: str) -> Watched:
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error as error:
        return Watched(sql, trouble=str(error))
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(_ROWS)
        return Watched(sql, [one[0] for one in cursor.description or ()], rows)
    except sqlite3.Error as error:
        return Watched(sql, trouble=str(error))
    finally:
        connection.close()
