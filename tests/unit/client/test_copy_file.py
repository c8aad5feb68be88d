"""The file with a copy of a topic: made anew where it cannot be read, left alone where it is another's."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from headrace.client import copy_file
from headrace.client.copy_file import open_copy

TABLES = "CREATE TABLE noted (id TEXT);"


def test_what_was_noted_is_there_again_and_is_synced_before_its_place(tmp_path: Path) -> None:
    path = tmp_path / "under" / "copy.db"
    with contextlib.closing(open_copy(path, TABLES, 1)) as first:
        first.execute("INSERT INTO noted VALUES ('a')")
        assert first.execute("PRAGMA synchronous").fetchone() == (1,)
    with contextlib.closing(open_copy(path, TABLES, 1)) as again:
        assert again.execute("SELECT id FROM noted").fetchall() == [("a",)]


def test_a_file_that_is_no_database_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_bytes(b"no database at all, " * 100)
    with contextlib.closing(open_copy(path, TABLES, 1)) as made:
        assert made.execute("SELECT id FROM noted").fetchall() == []


def test_a_file_that_somebody_writes_is_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_file, "_BUSY_S", 0.05)
    path = tmp_path / "copy.db"
    with contextlib.closing(open_copy(path, TABLES, 1)) as theirs:
        theirs.execute("INSERT INTO noted VALUES ('a')")
        theirs.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_copy(path, TABLES, 1)
        theirs.execute("COMMIT")
    with contextlib.closing(open_copy(path, TABLES, 1)) as again:
        assert again.execute("SELECT id FROM noted").fetchall() == [("a",)]
