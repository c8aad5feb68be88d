"""Views in PostgreSQL: faults are reported, and followers recover."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from faults.servers.postgres import PostgresServer
from faults.wait import until
from headrace.stores.errors import (
    PositionMoved,
    StoreBusy,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)
from headrace.stores.postgres.reader import check_schema
from headrace.stores.postgres.writer import PostgresWriter
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.views.postgres.database import sql


def test_a_table_of_another_program_is_not_changed(driver: StoreDriver, url: str) -> None:
    sql(url, "CREATE VIEW sales AS SELECT 1 AS mine")
    with pytest.raises(StoreForeign, match="view 'sales'"):
        driver.begin()
    sql(url, "DROP VIEW sales")
    driver.begin()
    sql(url, "CREATE TABLE sales (mine int)")
    with pytest.raises(StoreForeign, match="table 'sales'"):
        driver.store.swap(driver.fence)
    assert sql(url, "SELECT * FROM sales") == []


def test_a_schema_with_a_table_of_another_release_is_refused(url: str) -> None:
    sql(url, "CREATE SCHEMA later; CREATE TABLE later._headrace_views (view text, format_2 text)")
    with pytest.raises(StoreForeign, match="this release did not create"):
        PostgresWriter(url, "later", "sales")


@pytest.mark.parametrize(
    "wipe",
    [
        "DROP SCHEMA public CASCADE",
        "DROP TABLE _headrace_views",
        "DROP TABLE sales",
        "ALTER TABLE sales DROP COLUMN number",
    ],
)
def test_dropped_tables_are_detected_and_rebuilt(driver: StoreDriver, url: str, wipe: str) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    sql(url, wipe)
    with pytest.raises(StoreReplaced) as result:
        driver.apply(changes(SCHEMA, ("a", 2)))
    assert result.value.retriable
    with contextlib.closing(PostgresWriter(url, "public", "sales")) as store:
        again = StoreDriver(store)
        assert store.state(Part.SERVING) is None
        if wipe == "DROP TABLE _headrace_views":
            with pytest.raises(StoreForeign):
                again.begin()
            return
        again.serve()
        again.apply(changes(SCHEMA, ("a", 3)))
        assert list(store.rows()) == [("a", 3)]


@pytest.mark.parametrize("wipe", ["TRUNCATE sales", "DELETE FROM sales"])
def test_an_emptied_table_is_detected_before_any_write(driver: StoreDriver, url: str, wipe: str) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 1)))
    driver.apply(changes(SCHEMA, deleted=(("a",),)))
    sql(url, wipe)
    found = driver.store.state(Part.SERVING)
    assert found is not None
    assert "emptied" in found.fault
    with pytest.raises(PositionMoved, match="emptied") as result:
        driver.apply(changes(SCHEMA, ("c", 2)))
    assert result.value.retriable
    driver.serve()
    driver.apply(changes(SCHEMA, ("c", 3)))
    driver.apply(changes(SCHEMA, deleted=(("c",),)))
    # If the view's own follower emptied the table, nothing is lost.
    found = driver.store.state(Part.SERVING)
    assert found is not None
    assert found.fault == ""
    driver.apply(changes(SCHEMA, ("d", 4)))
    assert list(driver.store.rows()) == [("d", 4)]


def test_a_table_restored_alone_is_rebuilt(driver: StoreDriver, url: str) -> None:
    """The rows and the position are of different batches, and the columns do not reveal it."""
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    sql(url, "ALTER TABLE sales RENAME TO kept; CREATE TABLE sales (LIKE kept INCLUDING ALL)")
    sql(url, "INSERT INTO sales VALUES ('old', 0); DROP TABLE kept")
    assert driver.store.state(Part.SERVING) is None
    driver.begin()
    driver.apply(changes(SCHEMA, ("a", 2)), Part.BUILDING)
    driver.store.swap(driver.fence)
    assert list(driver.store.rows()) == [("a", 2)]
    assert driver.store.state(Part.SERVING) is not None


def test_a_schema_restored_as_a_whole_continues_at_its_position(
    server: PostgresServer, database: str, driver: StoreDriver
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    at, dump = driver.position, server.dump(database)
    driver.apply(changes(SCHEMA, ("a", 2)))
    server.restore(database, dump)
    found = driver.store.state(Part.SERVING)
    assert found is not None
    assert (found.position, found.fault) == (at, "")
    driver.position = at
    driver.apply(changes(SCHEMA, ("b", 1)))
    assert list(driver.store.rows()) == [("a", 1), ("b", 1)]


def test_a_foreign_table_under_the_name_of_a_view_is_not_overwritten(driver: StoreDriver, url: str) -> None:
    driver.serve()
    driver.begin()
    sql(url, "DROP TABLE sales; CREATE TABLE sales AS SELECT 1 AS mine")
    for attempt in (lambda: driver.store.swap(driver.fence), driver.begin):
        with pytest.raises(StoreForeign, match="table 'sales'"):
            attempt()
    assert sql(url, "SELECT * FROM sales") == [(1,)]


@pytest.mark.parametrize("reset", ["DISCARD ALL", "RESET ALL"])
def test_a_pooler_with_a_session_per_transaction_is_refused(driver: StoreDriver, reset: str) -> None:
    """Reset the session like a pooler that gives it to the next client."""
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    store = driver.store
    assert isinstance(store, PostgresWriter)
    store._session.connection.execute(reset)
    with pytest.raises(StoreUnusable, match="another server session") as result:
        driver.apply(changes(SCHEMA, ("a", 2)))
    assert "pool_mode" in result.value.hint


def test_a_follower_reports_a_table_lock_and_waits(driver: StoreDriver, url: str) -> None:
    driver.serve()
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreBusy, match="55P03"):
            driver.apply(changes(SCHEMA, ("a", 1)))
    driver.apply(changes(SCHEMA, ("a", 1)))
    assert list(driver.store.rows()) == [("a", 1)]


def test_a_statement_that_times_out_in_the_server_is_retried(driver: StoreDriver, url: str) -> None:
    driver.serve()
    sql(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(9); RETURN NEW; END'",
    )
    sql(url, "CREATE TRIGGER slow BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION slow()")
    store = driver.store
    assert isinstance(store, PostgresWriter)
    store._session.connection.execute("SET statement_timeout = 50")
    with pytest.raises(StoreBusy, match="57014") as result:
        driver.apply(changes(SCHEMA, ("a", 1)))
    assert "statement_timeout" in result.value.hint
    sql(url, "DROP TRIGGER slow ON sales")
    driver.apply(changes(SCHEMA, ("a", 1)))
    assert list(store.rows()) == [("a", 1)]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("53100", StoreFull),
        ("58030", StoreFull),
        ("XX000", StoreBusy),
        ("40003", StoreBusy),
        ("57P01", StoreGone),
    ],
)
def test_a_follower_waits_for_a_server_that_may_recover_and_loses_nothing(
    driver: StoreDriver, url: str, code: str, error: type[StoreError]
) -> None:
    """A full disk, a file error, an object dropped during a lookup: a trigger raises the server's error."""
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    sql(
        url,
        "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'could not' USING ERRCODE = '{code}'; END$$",
    )
    sql(url, "CREATE TRIGGER trouble AFTER INSERT ON sales FOR EACH STATEMENT EXECUTE FUNCTION trouble()")
    with pytest.raises(StoreError, match=code) as result:
        driver.apply(changes(SCHEMA, ("a", 2), ("b", 2)))
    assert (type(result.value), result.value.retriable, result.value.hint != "") == (error, True, True)
    assert list(driver.store.rows()) == [("a", 1)]
    sql(url, "DROP TRIGGER trouble ON sales")
    driver.apply(changes(SCHEMA, ("a", 2), ("b", 2)))
    assert list(driver.store.rows()) == [("a", 2), ("b", 2)]


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("postgresql://locked:s3cr3t@127.0.0.1:{port}/{database}", StoreUnusable),
        ("postgresql://nobody:s3cr3t@127.0.0.1:{port}/{database}", StoreUnusable),
        ("postgresql://postgres:s3cr3t@127.0.0.1:{port}/nowhere", StoreGone),
        ("postgresql://postgres:s3cr3t@127.0.0.1:1/{database}", StoreGone),
        ("postgresql://postgres:s3cr3t@name.invalid/{database}", StoreGone),
        ("postgresql://postgres:s3cr3t@127.0.0.1:{port}/{database}?frobnicate=1", StoreUnusable),
        ("postgresql://postgres:s3cr3t@127.0.0.1:port s3cr3t/x", StoreUnusable),
        ("password=s3cr3t host=127.0.0.1 port={port} dbname={database} user=locked", StoreUnusable),
    ],
)
def test_a_connection_error_shows_no_password(
    server: PostgresServer, database: str, address: str, error: type[StoreError]
) -> None:
    lock(server)
    url = address.format(port=server.port, database=database)
    with pytest.raises(StoreError) as result:
        PostgresWriter(url, "public", "sales")
    assert type(result.value) is error, result.value
    assert result.value.hint
    with pytest.raises(StoreError):
        check_schema(url, "public")
    seen = f"{result.value} {result.value.detail} {result.value.hint} {result.value.facts()}"
    assert SECRET not in seen


def lock(server: PostgresServer) -> None:
    """A role that needs a password."""
    hba = server.data / "pg_hba.conf"
    rules = hba.read_text()
    if "locked" in rules:
        return
    hba.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules}")
    server.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    server.execute("SELECT pg_reload_conf()")
    until(
        lambda: (
            server.execute("SELECT count(*) FROM pg_hba_file_rules WHERE 'locked' = ANY(user_name)") == [(1,)]
        ),
        "it",
    )


def test_a_role_without_permission_gets_the_grant_it_needs(server: PostgresServer, database: str) -> None:
    lock(server)
    theirs = server.url(database, "locked", "right")
    for attempt in (
        lambda: PostgresWriter(theirs, "public", "sales"),
        lambda: check_schema(theirs, "public"),
    ):
        with pytest.raises(StoreUnusable, match=r"has no permission to write|permission denied") as result:
            attempt()
        assert "CREATE" in result.value.hint
    server.execute("GRANT CREATE ON SCHEMA public TO locked", database)
    assert check_schema(theirs, "public") is False
    with contextlib.closing(PostgresWriter(theirs, "public", "sales")) as store:
        StoreDriver(store).serve()
    assert check_schema(theirs, "public") is True


def test_a_missing_schema_is_created(url: str) -> None:
    with contextlib.closing(PostgresWriter(url, "reports", "sales")) as store:
        StoreDriver(store).serve()
    assert sql(url, "SELECT count(*) FROM reports.sales") == [(0,)]


def test_a_read_only_replica_is_refused(driver: StoreDriver, url: str) -> None:
    store = driver.store
    assert isinstance(store, PostgresWriter)
    driver.serve()
    store._session.connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreGone, match="read-only replica") as result:
        driver.apply(changes(SCHEMA, ("a", 1)))
    assert "primary" in result.value.hint


def test_a_database_that_cannot_hold_every_text_is_refused(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnusable, match="LATIN1"):
            PostgresWriter(server.url("latin"), "public", "sales")
    finally:
        server.drop("latin")
