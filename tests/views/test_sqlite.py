"""The SQLite store: foreign files, additions of users, and error messages."""

from __future__ import annotations

import contextlib
import sqlite3
import string
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.kinds import Field, Scalar
from headrace.stores.errors import (
    NameRefused,
    QueryFailed,
    SchemaRefused,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreReplaced,
    StoreUnusable,
)
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.registry import open_sqlite
from headrace.stores.sqlite.reader import SqliteReader, connect_read_only
from headrace.stores.sqlite.writer import SqliteWriter
from headrace.stores.writer import Changes, Fence, Part
from tests.contract.store_writer import SCHEMA, position_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "er" / "shop.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteWriter]:
    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        yield store


def serve(store: SqliteWriter, view_schema: ViewSchema = SCHEMA, rows: int = 3) -> Fence:
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(view_schema, position_of(NO_BATCH), "", fence)
    changes = Changes(view_schema)
    for number in range(rows):
        changes.put((f"k{number}", number))
    store.apply(Part.BUILDING, changes, position_of(NO_BATCH), position_of(0), fence)
    store.swap(fence)
    return fence


def sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        found = [connection.execute(statement).fetchall() for statement in statements]
    return found[-1]


def test_a_table_has_the_name_and_key_of_its_view_and_plain_types(store: SqliteWriter, path: Path) -> None:
    kinds = ("text", "int", "float", "bool", "time", "date", "bytes")
    fields = tuple(Field(f"a {name}", Scalar(name), True) for name in kinds)
    view_schema = ViewSchema(fields, ("a time", "a text"))
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(view_schema, position_of(NO_BATCH), "", fence)
    store.swap(fence)
    assert sql(path, "SELECT name, type, pk FROM pragma_table_info('sales')") == [
        ("a text", "TEXT", 2),
        ("a int", "INTEGER", 0),
        ("a float", "REAL", 0),
        ("a bool", "INTEGER", 0),
        ("a time", "TEXT", 1),
        ("a date", "TEXT", 0),
        ("a bytes", "BLOB", 0),
    ]
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def foreign(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True)
    match content:
        case "a directory":
            path.mkdir()
        case "a text":
            path.write_text("hello\n" * 1000)
        case "another database":
            sql(path, "CREATE TABLE mine (x)", "INSERT INTO mine VALUES (1)")
        case "another application":
            sql(path, "PRAGMA application_id = 7")
        case "a newer format":
            SqliteWriter(path, "sales").close()
            sql(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("a directory", StoreUnusable),
        ("a text", StoreForeign),
        ("another database", StoreForeign),
        ("another application", StoreForeign),
        ("a newer format", StoreUnusable),
    ],
)
def test_foreign_content_is_refused_and_not_changed(
    path: Path, content: str, error: type[StoreError]
) -> None:
    foreign(path, content)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(error) as refused:
        SqliteWriter(path, "sales")
    assert str(path) in str(refused.value)
    assert refused.value.hint
    assert not refused.value.retriable
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        serve(store)


@pytest.mark.parametrize("pages", [0, 1])
def test_a_reader_finds_no_store_while_a_follower_creates_the_file(path: Path, pages: int) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    if pages:
        # This is a follower's first step. Its next transaction creates the tables.
        with contextlib.closing(sqlite3.connect(path)) as maker:
            maker.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size == pages * 4_096
    assert open_sqlite(path) is None
    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        serve(store)
        reader = open_sqlite(path)
        assert reader is not None
        with contextlib.closing(reader):
            assert [view.view for view in reader.views()] == ["sales"]


def test_the_error_of_a_damaged_file_names_the_remedy(store: SqliteWriter, path: Path) -> None:
    serve(store, rows=2_000)
    store.close()
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with contextlib.closing(SqliteWriter(path, "sales")) as damaged, pytest.raises(StoreDamaged) as result:
        serve(damaged)
    assert "to another place" in result.value.hint


def test_a_table_that_a_user_created_is_not_replaced(store: SqliteWriter, path: Path) -> None:
    sql(path, "CREATE TABLE Sales (x)", "INSERT INTO sales VALUES (7)")
    with pytest.raises(StoreForeign, match="'sales'"):
        serve(store)
    assert sql(path, "SELECT x FROM sales") == [(7,)]


def test_an_index_that_a_user_added_survives_a_rebuild(store: SqliteWriter, path: Path) -> None:
    serve(store)
    sql(
        path,
        "CREATE INDEX by_number ON sales (number)",
        "CREATE INDEX by_both ON Sales (number, key)",
        "CREATE VIEW big AS SELECT * FROM sales WHERE number > 0",
    )
    other = ViewSchema((Field("key", Scalar("text"), False), Field("number", Scalar("int"), True)), ("key",))
    serve(store, other, rows=2)
    indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1"
    assert sql(path, indexes) == [("by_both",), ("by_number",)]
    assert sql(path, "SELECT * FROM big") == [("k1", 1)]
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(
        ViewSchema((Field("key", Scalar("text"), False),), ("key",)), position_of(NO_BATCH), "", fence
    )
    store.swap(fence)
    assert sql(path, indexes) == []
    assert list(store.rows()) == []


def test_names_that_differ_only_by_case_cannot_share_a_file(store: SqliteWriter, path: Path) -> None:
    serve(store)
    with contextlib.closing(SqliteWriter(path, "SALES")) as twin, pytest.raises(NameRefused, match="'SALES'"):
        twin.claim("a test", 1)
    view_schema = ViewSchema(
        (Field("key", Scalar("text"), False), Field("KEY", Scalar("int"), True)), ("key",)
    )
    with pytest.raises(SchemaRefused, match="duplicate column"):
        serve(store, view_schema)
    assert len(list(store.rows())) == 3


@pytest.mark.parametrize("name", ["sqlite_x", "SQLite_y", "_headrace_views", "_Headrace_new_sales"])
def test_reserved_names_are_refused(path: Path, name: str) -> None:
    with pytest.raises(NameRefused):
        SqliteWriter(path, name)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
        | st.sampled_from(
            ["select", '"', "'); DROP TABLE _headrace_views; --", "a]b", "`", "rowid", "_rowid_"]
        ),
        min_size=2,
        max_size=4,
        unique_by=lambda name: name.translate(str.maketrans(string.ascii_uppercase, string.ascii_lowercase)),
    )
)
def test_a_column_may_have_any_name(store: SqliteWriter, names: list[str]) -> None:
    view_schema = ViewSchema(tuple(Field(name, Scalar("int"), True) for name in names), (names[0],))
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(view_schema, position_of(NO_BATCH), "", fence)
    changes = Changes(view_schema)
    changes.put(tuple(range(len(names))))
    changes.put(tuple(range(1, len(names) + 1)))
    changes.remove((0,))
    store.apply(Part.BUILDING, changes, position_of(NO_BATCH), position_of(0), fence)
    store.swap(fence)
    assert list(store.rows()) == [tuple(range(1, len(names) + 1))]


def test_a_column_without_a_name_is_refused(store: SqliteWriter) -> None:
    for name in ("", "a\0b"):
        with pytest.raises(SchemaRefused):
            serve(store, ViewSchema((Field(name, Scalar("int"), True),), (name,)))


def test_a_store_is_busy_while_another_program_writes_and_then_recovers(
    store: SqliteWriter, path: Path
) -> None:
    fence = serve(store)
    store._file.connection.execute("PRAGMA busy_timeout = 10")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy) as result:
            store.apply(Part.SERVING, Changes(SCHEMA), position_of(0), position_of(1), fence)
        assert result.value.retriable
        other.execute("ROLLBACK")
    store.apply(Part.SERVING, Changes(SCHEMA), position_of(0), position_of(1), fence)


def test_a_full_disk_is_reported_and_keeps_the_rows(store: SqliteWriter) -> None:
    fence = serve(store)
    (pages,) = store._file.connection.execute("PRAGMA page_count").fetchone()
    store._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    changes = Changes(SCHEMA)
    for number in range(5_000):
        changes.put((f"k{number}", -1))
    with pytest.raises(StoreFull) as result:
        store.apply(Part.SERVING, changes, position_of(0), position_of(1), fence)
    assert result.value.retriable
    assert list(store.rows()) == [("k0", 0), ("k1", 1), ("k2", 2)]
    store._file.connection.execute("PRAGMA max_page_count = 1000000")
    store.apply(Part.SERVING, changes, position_of(0), position_of(1), fence)
    assert len(list(store.rows())) == 5_000


def test_the_next_write_detects_a_removed_file(store: SqliteWriter, path: Path) -> None:
    fence = serve(store)
    path.unlink()
    with pytest.raises(StoreReplaced):
        store.apply(Part.SERVING, Changes(SCHEMA), position_of(0), position_of(1), fence)
    assert not path.exists()


def test_a_read_detects_a_removed_file(store: SqliteWriter, path: Path) -> None:
    serve(store)
    assert store.state(Part.SERVING) is not None
    path.unlink()
    with pytest.raises(StoreReplaced):
        store.state(Part.SERVING)


def test_many_followers_of_one_file_take_turns(path: Path) -> None:
    stores = 6
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with contextlib.closing(SqliteWriter(path, f"view-{number}")) as store:
                fence = serve(store)
                for batch in range(60):
                    changes = Changes(SCHEMA)
                    changes.put(("k", batch))
                    store.apply(Part.SERVING, changes, position_of(batch), position_of(batch + 1), fence)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert sql(path, "SELECT count(*), min(batch), max(batch) FROM _headrace_views") == [(stores, 60, 60)]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM sales", "CREATE TABLE x (y)", "INSERT INTO sales SELECT * FROM sales"]
)
def test_the_connection_of_a_reader_cannot_write(store: SqliteWriter, path: Path, statement: str) -> None:
    serve(store)
    store.close()
    before = path.read_bytes()
    with contextlib.closing(connect_read_only(path)) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute(statement)
    assert path.read_bytes() == before


def test_a_scan_stops_at_its_timeout(store: SqliteWriter, path: Path) -> None:
    serve(store, rows=5_000)
    with contextlib.closing(SqliteReader(path)) as reader:
        with pytest.raises(QueryFailed, match="stopped after -1 s"), reader.scan("sales", -1) as (_, rows):
            list(rows)
        with reader.scan("sales", 60) as (names, rows):
            assert (tuple(names), len(list(rows))) == (SCHEMA.names, 5_000)


def test_a_file_of_the_previous_format_is_continued(path: Path) -> None:
    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        serve(store)
    before = position_of(0)
    sql(path, "ALTER TABLE _headrace_views DROP COLUMN sources", "PRAGMA user_version = 1")
    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        state = store.state(Part.SERVING)
        assert state is not None
        assert state.position == msgspec.structs.replace(before, sources={})
        fence = Fence(store.claim("a test", 2), 1)
        store.apply(Part.SERVING, Changes(SCHEMA), state.position, position_of(1), fence)
        found = store.state(Part.SERVING)
        assert found is not None
        assert found.position == position_of(1)
