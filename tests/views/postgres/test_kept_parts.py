"""Switching a view in PostgreSQL back to its kept part: tables, grants, SQL views and open transactions of users."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psycopg
import pytest

from headrace.stores.errors import PositionMoved, StoreReplaced
from headrace.stores.postgres import swap
from headrace.stores.postgres.layout import Catalog
from headrace.stores.postgres.reader import PostgresReader
from headrace.stores.postgres.session import PostgresSession
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.contract.test_kept_parts import WIDER
from tests.views.postgres.database import sql


@pytest.fixture
def role(url: str) -> Iterator[str]:
    name = f"reader_{os.getpid()}"
    sql(url, f"CREATE ROLE {name} LOGIN")
    yield name
    sql(url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def table_id(url: str) -> int:
    return int(sql(url, "SELECT 'sales'::regclass::oid")[0][0])


def test_switching_back_exchanges_the_tables_and_carries_the_grants(
    driver: StoreDriver, url: str, role: str
) -> None:
    def rows() -> list[tuple[str, int]]:
        return sql(url.replace("postgres@", f"{role}@"), "SELECT key, number FROM sales")

    driver.serve_generation(1, ("a", 1))
    sql(url, "CREATE INDEX by_number ON sales (number)")
    driver.serve_generation(2, ("a", 2, "x"), schema=WIDER)
    sql(url, f"GRANT SELECT (key, number) ON sales TO {role} WITH GRANT OPTION")
    sql(url, "GRANT SELECT ON sales TO PUBLIC")
    before = table_id(url)
    driver.at(1, 0).store.swap_back(driver.fence)
    assert table_id(url) != before
    assert rows() == [("a", 1)]
    assert sql(
        url, "SELECT count(*) FROM pg_indexes WHERE tablename = 'sales' AND indexdef LIKE '%(number)'"
    ) == [(1,)]
    sql(url, "REVOKE ALL ON sales FROM PUBLIC")
    driver.at(2, 0).store.swap_back(driver.fence)
    assert table_id(url) == before
    assert rows() == [("a", 2)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql(url.replace("postgres@", f"{role}@"), "SELECT label FROM sales")
    assert driver.part(Part.SERVING) == (2, 0, [("a", 2, "x")])
    driver.store.drop(Part.KEPT, driver.fence)
    assert sql(url, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE '%sales'") == [
        ("sales",)
    ]


def test_a_sql_view_of_a_user_reads_the_part_that_serves_again(driver: StoreDriver, url: str) -> None:
    driver.serve_generation(1, ("a", 1), ("b", 1))
    sql(url, "CREATE VIEW doubled AS SELECT key, number * 2 AS twice FROM sales")
    driver.serve_generation(2, ("b", 2), ("c", 2))
    driver.at(1, 0).apply(changes(SCHEMA, ("d", 1)), Part.KEPT)
    before = table_id(url)
    driver.store.swap_back(driver.fence)
    # Rows were copied, because the SQL view reads this table, whatever its name is.
    assert table_id(url) == before
    assert sql(url, "SELECT * FROM doubled ORDER BY key") == [("a", 2), ("b", 2), ("d", 2)]
    assert driver.part(Part.KEPT) == (2, 0, [("b", 2), ("c", 2)])
    assert sql(url, "SELECT relname FROM pg_class WHERE relname LIKE '_headrace_moving%'") == []


@pytest.mark.parametrize(
    "object_sql",
    [
        "CREATE MATERIALIZED VIEW copied AS SELECT * FROM sales",
        "CREATE TABLE orders (key text REFERENCES sales)",
        "CREATE TRIGGER none BEFORE UPDATE ON sales FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE PUBLICATION published FOR TABLE sales",
        "ALTER TABLE sales ENABLE ROW LEVEL SECURITY",
        "CREATE FUNCTION label_of(sales) RETURNS text LANGUAGE sql AS 'SELECT $1.key'",
    ],
    ids=lambda text: " ".join(text.split()[1:2]),
)
def test_an_object_that_depends_on_the_table_keeps_the_table(
    driver: StoreDriver, url: str, object_sql: str
) -> None:
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    sql(url, object_sql)
    before = table_id(url)
    driver.at(1, 0).store.swap_back(driver.fence)
    assert table_id(url) == before
    assert driver.part(Part.SERVING) == (1, 0, [("a", 1)])
    assert driver.part(Part.KEPT) == (2, 0, [("a", 2)])


def test_an_open_transaction_that_has_read_the_table_does_not_stop_the_switch(
    driver: StoreDriver, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "_LOCK_WAIT_MS", 50)
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    before = table_id(url)
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT number FROM sales").fetchall() == [(2,)]
        driver.at(1, 0).store.swap_back(driver.fence)
        assert reader.execute("SELECT number FROM sales").fetchall() == [(2,)]
        assert sql(url, "SELECT number FROM sales") == [(1,)]
    assert table_id(url) == before


def test_a_read_that_began_before_a_switch_fails_instead_of_mixing_generations(
    driver: StoreDriver, url: str
) -> None:
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    with contextlib.closing(PostgresSession.for_reading(url, "public")) as session:
        catalog = Catalog(session)
        with session.reading() as connection:
            connection.execute("SELECT 1")
            driver.at(1, 0).store.swap_back(driver.fence)
            catalog.lock_serving(connection, "sales", 5)
            with pytest.raises(StoreReplaced, match="switched back") as result:
                catalog.state(connection, "sales", Part.SERVING)
        assert result.value.retriable
    with contextlib.closing(PostgresReader(url, "public")) as reader:
        state = reader.state("sales")
        assert state is not None
        assert state.position.generation == 1


@pytest.mark.parametrize("change", ["TRUNCATE", "DROP TABLE"])
def test_a_kept_part_that_another_program_emptied_does_not_serve(
    driver: StoreDriver, url: str, change: str
) -> None:
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    sql(url, f"{change} _headrace_kept_sales")
    with pytest.raises(PositionMoved, match="kept part"):
        driver.at(1, 0).store.swap_back(driver.fence)
    driver.store.drop(Part.KEPT, driver.fence)
    assert driver.part(Part.SERVING) == (2, 0, [("a", 2)])


def test_an_emptied_serving_part_is_not_kept(driver: StoreDriver, url: str) -> None:
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    sql(url, "TRUNCATE sales")
    driver.serve_generation(3, ("a", 3))
    assert driver.part(Part.KEPT) == (1, 0, [("a", 1)])
    sql(url, "TRUNCATE sales")
    driver.at(1, 0).store.swap_back(driver.fence)
    assert driver.part(Part.SERVING) == (1, 0, [("a", 1)])
    assert driver.part(Part.KEPT) is None
