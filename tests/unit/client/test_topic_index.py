"""The file of a topic index: replaced if it cannot be read, left alone while another process locks it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from headrace.client import topic_index
from headrace.client.topic_index import open_index_file

TABLES = "CREATE TABLE items (id TEXT);"


def test_rows_survive_a_reopen_and_are_synced_before_the_position(tmp_path: Path) -> None:
    path = tmp_path / "under" / "copy.db"
    with contextlib.closing(open_index_file(path, TABLES, 1)) as first:
        first.execute("INSERT INTO items VALUES ('a')")
        assert first.execute("PRAGMA synchronous").fetchone() == (1,)
    with contextlib.closing(open_index_file(path, TABLES, 1)) as reopened:
        assert reopened.execute("SELECT id FROM items").fetchall() == [("a",)]


def test_a_file_that_is_not_a_database_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_bytes(b"no database at all, " * 100)
    with contextlib.closing(open_index_file(path, TABLES, 1)) as index:
        assert index.execute("SELECT id FROM items").fetchall() == []


def test_a_file_that_another_process_locks_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_index, "_BUSY_S", 0.05)
    path = tmp_path / "copy.db"
    with contextlib.closing(open_index_file(path, TABLES, 1)) as other_process:
        other_process.execute("INSERT INTO items VALUES ('a')")
        other_process.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_index_file(path, TABLES, 1)
        other_process.execute("COMMIT")
    with contextlib.closing(open_index_file(path, TABLES, 1)) as reopened:
        assert reopened.execute("SELECT id FROM items").fetchall() == [("a",)]
