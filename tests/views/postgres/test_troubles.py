"""Views in PostgreSQL: what goes wrong is told, and healed."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from headrace.views.errors import (
    PositionMoved,
    StoreBusy,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)
from headrace.views.postgres.checking import check
from headrace.views.postgres.store import PostgresStore
from headrace.views.store import Part
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE
from tests.support.postgres import PostgresServer
from tests.support.waiting import until
from tests.views.postgres.looking import sql


def test_a_table_that_somebody_else_made_is_left_alone(hand: Hand, url: str) -> None:
    sql(url, "CREATE VIEW sales AS SELECT 1 AS mine")
    with pytest.raises(StoreForeign, match="view 'sales'"):
        hand.begin()
    sql(url, "DROP VIEW sales")
    hand.begin()
    sql(url, "CREATE TABLE sales (mine int)")
    with pytest.raises(StoreForeign, match="table 'sales'"):
        hand.store.swap(hand.fence)
    assert sql(url, "SELECT * FROM sales") == []


def test_a_schema_with_a_table_of_another_release_is_refused(url: str) -> None:
    sql(url, "CREATE SCHEMA later; CREATE TABLE later._headrace_views (view text, format_2 text)")
    with pytest.raises(StoreForeign, match="this release has not made"):
        PostgresStore(url, "later", "sales")


@pytest.mark.parametrize(
    "wipe",
    [
        "DROP SCHEMA public CASCADE",
        "DROP TABLE _headrace_views",
        "DROP TABLE sales",
        "ALTER TABLE sales DROP COLUMN number",
    ],
)
def test_what_was_dropped_is_noticed_and_can_be_built_again(hand: Hand, url: str, wipe: str) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    sql(url, wipe)
    with pytest.raises(StoreReplaced) as told:
        hand.apply(changes(SHAPE, ("a", 2)))
    assert told.value.retriable
    with contextlib.closing(PostgresStore(url, "public", "sales")) as store:
        again = Hand(store)
        assert store.standing(Part.SERVING) is None
        if wipe == "DROP TABLE _headrace_views":
            with pytest.raises(StoreForeign):
                again.begin()
            return
        again.serve()
        again.apply(changes(SHAPE, ("a", 3)))
        assert list(store.rows()) == [("a", 3)]


@pytest.mark.parametrize("wipe", ["TRUNCATE sales", "DELETE FROM sales"])
def test_a_table_that_was_emptied_is_found_out_before_anything_is_written(
    hand: Hand, url: str, wipe: str
) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 1)))
    hand.apply(changes(SHAPE, gone=(("a",),)))
    sql(url, wipe)
    found = hand.store.standing(Part.SERVING)
    assert found is not None
    assert "emptied" in found.fault
    with pytest.raises(PositionMoved, match="emptied") as told:
        hand.apply(changes(SHAPE, ("c", 2)))
    assert told.value.retriable
    hand.serve()
    hand.apply(changes(SHAPE, ("c", 3)))
    hand.apply(changes(SHAPE, gone=(("c",),)))
    # By its follower, that is no loss.
    found = hand.store.standing(Part.SERVING)
    assert found is not None
    assert found.fault == ""
    hand.apply(changes(SHAPE, ("d", 4)))
    assert list(hand.store.rows()) == [("d", 4)]


def test_a_table_that_was_put_back_alone_is_built_again(hand: Hand, url: str) -> None:
    """Its rows are of another moment than the position, and nothing about its columns says so."""
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    sql(url, "ALTER TABLE sales RENAME TO kept; CREATE TABLE sales (LIKE kept INCLUDING ALL)")
    sql(url, "INSERT INTO sales VALUES ('old', 0); DROP TABLE kept")
    assert hand.store.standing(Part.SERVING) is None
    hand.begin()
    hand.apply(changes(SHAPE, ("a", 2)), Part.BUILDING)
    hand.store.swap(hand.fence)
    assert list(hand.store.rows()) == [("a", 2)]
    assert hand.store.standing(Part.SERVING) is not None


def test_a_schema_that_was_restored_as_a_whole_stands_where_it_was(
    server: PostgresServer, database: str, hand: Hand
) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    at, dump = hand.position, server.dump(database)
    hand.apply(changes(SHAPE, ("a", 2)))
    server.restore(database, dump)
    found = hand.store.standing(Part.SERVING)
    assert found is not None
    assert (found.position, found.fault) == (at, "")
    hand.position = at
    hand.apply(changes(SHAPE, ("b", 1)))
    assert list(hand.store.rows()) == [("a", 1), ("b", 1)]


def test_a_table_of_somebody_else_s_in_the_place_of_a_view_is_not_written_over(hand: Hand, url: str) -> None:
    hand.serve()
    hand.begin()
    sql(url, "DROP TABLE sales; CREATE TABLE sales AS SELECT 1 AS mine")
    for attempt in (lambda: hand.store.swap(hand.fence), hand.begin):
        with pytest.raises(StoreForeign, match="table 'sales'"):
            attempt()
    assert sql(url, "SELECT * FROM sales") == [(1,)]


@pytest.mark.parametrize("reset", ["DISCARD ALL", "RESET ALL"])
def test_a_pooler_that_gives_each_transaction_another_session_is_refused(hand: Hand, reset: str) -> None:
    """As it is met by who comes next: without what the session had."""
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    store = hand.store
    assert isinstance(store, PostgresStore)
    store._session.connection.execute(reset)
    with pytest.raises(StoreUnusable, match="another session") as told:
        hand.apply(changes(SHAPE, ("a", 2)))
    assert "pool_mode" in told.value.hint


def test_a_lock_on_the_table_is_waited_for_and_told(hand: Hand, url: str) -> None:
    hand.serve()
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreBusy, match="55P03"):
            hand.apply(changes(SHAPE, ("a", 1)))
    hand.apply(changes(SHAPE, ("a", 1)))
    assert list(hand.store.rows()) == [("a", 1)]


def test_a_statement_that_takes_too_long_for_the_server_is_tried_again(hand: Hand, url: str) -> None:
    hand.serve()
    sql(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(9); RETURN NEW; END'",
    )
    sql(url, "CREATE TRIGGER slow BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION slow()")
    store = hand.store
    assert isinstance(store, PostgresStore)
    store._session.connection.execute("SET statement_timeout = 50")
    with pytest.raises(StoreBusy, match="57014") as told:
        hand.apply(changes(SHAPE, ("a", 1)))
    assert "statement_timeout" in told.value.hint
    sql(url, "DROP TRIGGER slow ON sales")
    hand.apply(changes(SHAPE, ("a", 1)))
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
def test_what_the_server_may_recover_from_is_waited_for_and_nothing_is_lost(
    hand: Hand, url: str, code: str, error: type[StoreError]
) -> None:
    """A full disk, its files, something dropped while it is looked up: a trigger says it in the server's place."""
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    sql(
        url,
        "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'could not' USING ERRCODE = '{code}'; END$$",
    )
    sql(url, "CREATE TRIGGER trouble AFTER INSERT ON sales FOR EACH STATEMENT EXECUTE FUNCTION trouble()")
    with pytest.raises(StoreError, match=code) as told:
        hand.apply(changes(SHAPE, ("a", 2), ("b", 2)))
    assert (type(told.value), told.value.retriable, told.value.hint != "") == (error, True, True)
    assert list(hand.store.rows()) == [("a", 1)]
    sql(url, "DROP TRIGGER trouble ON sales")
    hand.apply(changes(SHAPE, ("a", 2), ("b", 2)))
    assert list(hand.store.rows()) == [("a", 2), ("b", 2)]


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
def test_what_cannot_be_opened_is_told_without_a_password(
    server: PostgresServer, database: str, address: str, error: type[StoreError]
) -> None:
    lock(server)
    url = address.format(port=server.port, database=database)
    with pytest.raises(StoreError) as told:
        PostgresStore(url, "public", "sales")
    assert type(told.value) is error, told.value
    assert told.value.hint
    with pytest.raises(StoreError):
        check(url, "public")
    seen = f"{told.value} {told.value.detail} {told.value.hint} {told.value.facts()}"
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


def test_a_role_that_may_not_write_is_told_what_it_needs(server: PostgresServer, database: str) -> None:
    lock(server)
    theirs = server.url(database, "locked", "right")
    for attempt in (lambda: PostgresStore(theirs, "public", "sales"), lambda: check(theirs, "public")):
        with pytest.raises(StoreUnusable, match=r"may not write|permission denied") as told:
            attempt()
        assert "CREATE" in told.value.hint
    server.execute("GRANT CREATE ON SCHEMA public TO locked", database)
    assert check(theirs, "public") is False
    with contextlib.closing(PostgresStore(theirs, "public", "sales")) as store:
        Hand(store).serve()
    assert check(theirs, "public") is True


def test_a_schema_that_is_missing_is_made(url: str) -> None:
    with contextlib.closing(PostgresStore(url, "reports", "sales")) as store:
        Hand(store).serve()
    assert sql(url, "SELECT count(*) FROM reports.sales") == [(0,)]


def test_a_read_only_copy_is_told_apart(hand: Hand, url: str) -> None:
    store = hand.store
    assert isinstance(store, PostgresStore)
    hand.serve()
    store._session.connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreGone, match="read-only copy") as told:
        hand.apply(changes(SHAPE, ("a", 1)))
    assert "primary" in told.value.hint


def test_a_database_that_cannot_hold_every_text_is_refused(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnusable, match="LATIN1"):
            PostgresStore(server.url("latin"), "public", "sales")
    finally:
        server.drop("latin")
