"""Queries of a database, without the code of the store."""

from __future__ import annotations

from typing import Any

import psycopg

__all__ = ["sql"]


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []
