"""Views in PostgreSQL as users see them: their own objects survive, and a stalled follower blocks no other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import string
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from faults.views.follower_thread import dead_letters, following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, List, Scalar
from headrace.stores import Postgres
from headrace.stores.errors import (
    QueryFailed,
    SchemaRefused,
    StaleWriter,
    StoreBusy,
    StoreGone,
)
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.postgres.reader import PostgresReader
from headrace.stores.postgres.table import KEY_BYTES_MAX
from headrace.stores.postgres.writer import PostgresWriter
from headrace.stores.registry import open_reader
from headrace.stores.rows import Row
from headrace.stores.writer import Changes, Fence, Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA, position_of
from tests.verify.test_topic_views import Order
from tests.views.postgres.database import sql

WIDE = ViewSchema((*SCHEMA.fields, Field("note", Scalar("text"), True)), ("key",))
EVERY_TYPE = ViewSchema(
    (
        Field("key", Scalar("text"), False),
        Field("n", Scalar("int"), True),
        Field("f", Scalar("float"), True),
        Field("b", Scalar("bool"), True),
        Field("d", Digits(20, 4), True),
        Field("t", Scalar("time"), True),
        Field("day", Scalar("date"), True),
        Field("raw", Scalar("bytes"), True),
        Field("many", List(Scalar("int")), True),
    ),
    ("key",),
)


# Tables as users see them


def test_columns_have_the_types_that_users_of_postgres_expect(driver: StoreDriver, url: str) -> None:
    driver.serve(EVERY_TYPE)
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    rows: list[Row] = [
        ("a", -(2**63), "NaN", True, "1234567890123456.7890", first, "0001-01-01", b"\0\xff", "[1,2]"),
        ("b", 2**63 - 1, float("-inf"), False, "-0.0001", last, "9999-12-31", b"", "[]"),
        ("c", None, None, None, None, None, None, None, None),
        ("d", 0, 5e-324, None, "0.0000", "1969-12-31T23:59:59.999999Z", "1970-01-01", b"\\x", "[ 1 ]"),
    ]
    driver.apply(changes(EVERY_TYPE, *rows))
    assert list(driver.store.rows()) == rows
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'sales'"
    assert sql(url, f"{columns} ORDER BY ordinal_position") == [
        ("key", "text"),
        ("n", "bigint"),
        ("f", "double precision"),
        ("b", "boolean"),
        ("d", "numeric"),
        ("t", "timestamp with time zone"),
        ("day", "date"),
        ("raw", "bytea"),
        ("many", "json"),
    ]
    summed = "SELECT sum(d), max(t) - min(t) > interval '1 year', min(many->>0) FROM sales WHERE day > '1960-01-01'"
    assert sql(url, summed) == [(Decimal("-0.0001"), True, "1")]


def test_objects_that_users_created_on_a_table_survive_a_rebuild(driver: StoreDriver, url: str) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 2), ("c", 3)))
    name = f"reader_{os.getpid()}"
    sql(url, f"CREATE ROLE {name} LOGIN")
    try:
        sql(url, f"GRANT SELECT ON sales TO {name}")
        sql(url, "CREATE INDEX by_number ON sales (number)")
        sql(url, "CREATE VIEW doubled AS SELECT key, number * 2 AS twice FROM sales")
        for view_schema, more in ((SCHEMA, ()), (WIDE, ("new",))):
            driver.begin(view_schema)
            driver.apply(
                changes(view_schema, ("b", 2, *more), ("c", 4, *more), ("d", 5, *more)), Part.BUILDING
            )
            at, driver.position = driver.position, position_of(NO_BATCH)
            driver.position = at
            assert sql(url, "SELECT count(*) FROM doubled") == [(3,)]
            driver.store.swap(driver.fence)
            assert sql(url, "SELECT * FROM doubled ORDER BY key") == [("b", 4), ("c", 8), ("d", 10)]
            theirs = url.replace("postgres@", f"{name}@")
            assert sql(theirs, "SELECT key, number FROM sales WHERE number = 4") == [("c", 4)]
            assert sql(url, "SELECT 1 FROM pg_indexes WHERE indexname = 'by_number'") == [(1,)]
            assert list(driver.store.rows()) == [("b", 2, *more), ("c", 4, *more), ("d", 5, *more)]
    finally:
        sql(url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_rebuild_writes_only_the_rows_that_differ(driver: StoreDriver, url: str) -> None:
    driver.serve(EVERY_TYPE)
    same = ("a", 1, "NaN", True, "1.0000", "2026-01-31T12:00:00.000000Z", "2026-01-31", b"x", "[1]")
    driver.apply(changes(EVERY_TYPE, same, ("b", *[None] * 8)))
    (before,) = sql(url, "SELECT xmin::text FROM sales WHERE key = 'a'")
    driver.begin(EVERY_TYPE)
    driver.apply(changes(EVERY_TYPE, same, ("b", 2, *[None] * 7)), Part.BUILDING)
    driver.store.swap(driver.fence)
    assert sql(url, "SELECT xmin::text FROM sales WHERE key = 'a'") == [before]
    assert list(driver.store.rows()) == [same, ("b", 2, *[None] * 7)]


def test_a_transaction_that_began_before_a_rebuild_sees_the_rows_from_before_it(
    driver: StoreDriver, url: str
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT batch FROM _headrace_views").fetchall() == [(0,)]
        driver.begin()
        driver.apply(changes(SCHEMA, ("b", 2)), Part.BUILDING)
        driver.store.swap(driver.fence)
        assert reader.execute("SELECT * FROM sales").fetchall() == [("a", 1)]
    assert list(driver.store.rows()) == [("b", 2)]


def test_a_column_with_a_dependent_object_stays_until_the_object_is_dropped(
    driver: StoreDriver, url: str
) -> None:
    driver.serve(WIDE)
    driver.apply(changes(WIDE, ("a", 1, "x")))
    sql(url, "CREATE VIEW notes AS SELECT note FROM sales")
    at = driver.position
    driver.begin(SCHEMA)
    with pytest.raises(StoreBusy, match="depends on") as result:
        driver.store.swap(driver.fence)
    assert "notes" in result.value.detail
    assert result.value.retriable
    assert sql(url, "SELECT * FROM notes") == [("x",)]
    sql(url, "DROP VIEW notes")
    driver.store.swap(driver.fence)
    assert list(driver.store.rows()) == []
    assert at != driver.position


def test_a_view_may_get_another_key(driver: StoreDriver, url: str) -> None:
    driver.serve(WIDE)
    driver.apply(changes(WIDE, ("a", 1, "x"), ("b", 1, "y")))
    other = ViewSchema(WIDE.fields, ("number",))
    driver.begin(other)
    driver.apply(changes(other, (None, 1, None), ("b", 2, "z")), Part.BUILDING)  # type: ignore[arg-type]
    driver.store.swap(driver.fence)
    assert list(driver.store.rows()) == [(None, 1, None), ("b", 2, "z")]
    driver.apply(changes(other, ("c", 2, None), deleted=((1,),)))
    assert list(driver.store.rows()) == [("c", 2, None)]


@pytest.mark.parametrize(
    "fields",
    [
        [Field("x" * 64, Scalar("text"), True)],
        [Field("a\0b", Scalar("text"), True)],
        [Field(f"c{n}", Scalar("int"), True) for n in range(1_700)],
    ],
    ids=["long name", "NUL", "too many"],
)
def test_a_schema_that_postgres_cannot_hold_is_refused(driver: StoreDriver, fields: list[Field]) -> None:
    with pytest.raises(SchemaRefused):
        driver.begin(ViewSchema((*SCHEMA.fields, *fields), ("key",)))
    driver.serve()


def test_large_batches_of_new_and_existing_keys_are_applied_once(driver: StoreDriver, url: str) -> None:
    driver.serve()
    rng = random.Random(1)
    right: dict[str, int] = {}
    for batch in range(12):
        first = batch * 150 if batch % 3 else max(0, batch * 150 - 20)
        rows: list[Row] = [(f"k{number}", rng.randrange(10**6)) for number in range(first, first + 150)]
        driver.apply(changes(SCHEMA, *rows))
        right |= dict(rows)  # type: ignore[arg-type]
        assert dict(sql(url, "SELECT key, number FROM sales")) == right


def test_direct_inserts_are_tried_less_often_while_keys_exist(driver: StoreDriver, url: str) -> None:
    driver.serve()
    sql(url, "CREATE SEQUENCE statements")
    # A savepoint does not roll a sequence back: it also counts failed attempts.
    sql(
        url,
        "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM nextval('public.statements'); RETURN NULL; END $$",
    )
    sql(
        url,
        "CREATE TRIGGER counted BEFORE INSERT ON sales FOR EACH STATEMENT EXECUTE FUNCTION counted()",
    )

    def statements(first: int) -> int:
        before = sql(url, "SELECT nextval('statements')")[0][0]
        driver.apply(changes(SCHEMA, *((f"k{number}", number) for number in range(first, first + 100))))
        return int(sql(url, "SELECT nextval('statements')")[0][0] - before - 1)

    assert statements(0) == 1
    tried = [batch for batch in range(16) if statements(0) == 2]
    assert tried == [0, 2, 6, 14]
    assert sql(url, "SELECT count(*) FROM sales") == [(100,)]


def test_names_that_need_quotes_are_allowed(url: str) -> None:
    view_schema = ViewSchema(
        (Field('a"%s b', Scalar("text"), False), Field("gone0", Scalar("int"), True)), ('a"%s b',)
    )
    with contextlib.closing(PostgresWriter(url, 'Odd "schema', "Sales.by-day")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        driver.apply(changes(view_schema, ("x", 1), ("y", 2)))
        driver.apply(changes(view_schema, deleted=(("x",),)))
        driver.begin(view_schema)
        driver.apply(changes(view_schema, ("z", 3)), Part.BUILDING)
        store.swap(driver.fence)
        assert list(store.rows()) == [("z", 3)]
    assert sql(url, 'SELECT * FROM "Odd ""schema"."Sales.by-day"') == [("z", 3)]


# Values that cannot be stored


def test_a_row_that_the_store_cannot_hold_becomes_a_dead_letter_and_the_view_continues(
    cluster: Cluster, fresh: Callable[[str], str], url: str, tmp_path: Path
) -> None:
    app, name = App("shop"), fresh("orders")
    cluster.ensure_topic(name, 1)
    view = app.view(name, app.table(name, Order, key="order"), store=Postgres(url))
    long = "k" * (KEY_BYTES_MAX + 1)

    def value(order: str, customer: str) -> bytes:
        return json.dumps({"order": order, "amount": 1, "customer": customer}).encode()

    unfit = [(b"a", value("a", "\0")), (long.encode(), value(long, "")), (b"n\0", None)]
    held = [
        (b"a", value("a", "ann")),
        (b"k", value("k" * KEY_BYTES_MAX, "")),
        (b"b", value("b", "\x01\u2028")),
    ]
    produce(cluster, name, [held[0], *unfit, *held[1:]])
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: followed.follower.status.applied >= 6 or followed.error, "the records")
    assert followed.follower.status.dead == 3
    assert sql(url, f'SELECT customer FROM "{name}" ORDER BY "order"') == [("ann",), ("\x01\u2028",), ("",)]
    letters = dead_letters(cluster, view.dead_topic)
    assert [(key, body) for key, body, _ in letters] == unfit
    reasons = [headers["__headrace.errors.message"] for _, _, headers in letters]
    assert "customer" in reasons[0]
    assert "NUL" in reasons[0]
    assert str(KEY_BYTES_MAX) in reasons[1]


def test_a_key_may_have_many_columns(driver: StoreDriver) -> None:
    numbers = [Field(f"n{at}", Scalar("int"), False) for at in range(20)]
    view_schema = ViewSchema(
        (Field("key", Scalar("text"), False), *numbers), ("key", *(item.name for item in numbers))
    )
    limits, rng = driver.store.limits(view_schema), random.Random(1)
    assert limits is not None
    driver.serve(view_schema)
    fits = 0
    for size in range(KEY_BYTES_MAX - 600, KEY_BYTES_MAX + 1, 100):
        # Values that cannot be compressed.
        row: Row = ("".join(rng.choices(string.printable, k=size)), *range(20))
        with contextlib.suppress(ValueDoesNotFit):
            limits.check_row(row)
            driver.apply(changes(view_schema, row))
            fits += 1
    assert 0 < fits < 7


# Zombies


_ZOMBIE = """
import sys
import threading
from headrace.stores.postgres.writer import PostgresWriter
from headrace.stores.postgres.table import PostgresTable
from headrace.stores.rows import Row
from headrace.stores.writer import Fence, Part
from tests.contract.store_writer import SCHEMA, changes_of, position_of
store = PostgresWriter(sys.argv[1], "public", "sales")
fence = Fence(store.claim("zombie", 1), 1)
write = PostgresTable.write
def slowly(self, connection, changes):
    if sys.argv[2] == "inside":
        write(self, connection, changes)
        print("here", flush=True)
        sys.stdin.readline()
    else:
        with connection.cursor().copy(f"COPY {self._stage} (key) FROM STDIN") as copy:
            copy.write(b"half a row")
            print("here", flush=True)
            sys.stdin.readline()
PostgresTable.write = slowly
try:
    store.apply(Part.SERVING, changes_of(0), position_of(-1), position_of(0), fence)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("point", ["inside", "copying"])
def test_a_follower_that_sleeps_in_its_transaction_does_not_block_its_successor(
    driver: StoreDriver, url: str, point: str
) -> None:
    """SIGSTOP: its kernel still responds, so the server considers it alive."""
    driver.serve()
    if point == "copying":
        url = f"{url}?application_name=shop"
    zombie = subprocess.Popen(
        [sys.executable, "-c", _ZOMBIE, url, point], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    try:
        assert zombie.stdout.readline() == "here\n"
        os.kill(zombie.pid, signal.SIGSTOP)
        with contextlib.closing(PostgresWriter(url, "public", "sales")) as store:
            successor = StoreDriver(store)
            successor.apply(changes(SCHEMA, ("a", 1)))
            assert successor.owner.epoch == 3
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.stdin.write("go on\n")
        zombie.stdin.flush()
        assert zombie.stdout.readline() == "StoreGone\n"
        assert zombie.wait(30) == 0
    finally:
        zombie.kill()
        zombie.wait()
        zombie.stdin.close()
        zombie.stdout.close()
    assert list(driver.store.rows()) == [("a", 1)]
    with pytest.raises(StaleWriter):
        driver.store.claim("first", 1, driver.owner)


def test_a_lock_holder_that_is_not_a_follower_is_not_terminated(driver: StoreDriver, url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM _headrace_owners FOR UPDATE")
        with pytest.raises(StoreBusy) as result:
            driver.store.claim("driver", 1)
        assert result.value.retriable
        assert other.execute("SELECT 1").fetchone() == (1,)
    assert driver.store.claim("driver", 1).epoch == 2


# Reading


def test_a_reader_sees_the_serving_part_and_changes_nothing(
    driver: StoreDriver, url: str, tmp_path: Path
) -> None:
    app = App("shop")
    view = app.view("sales", app.table("sales", Order, key="order"), store=Postgres(url))
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 2)))
    driver.begin(WIDE)
    reader = open_reader(view, "shop", tmp_path)
    assert isinstance(reader, PostgresReader)
    with contextlib.closing(reader):
        assert [(view.view, view.part, view.state.position.batch) for view in reader.views()] == [
            ("sales", Part.SERVING, 0),
            ("sales", Part.BUILDING, NO_BATCH),
        ]
        assert reader.count("sales") == 2
        with reader.scan("sales", 5) as (names, rows):
            assert (names, sorted(rows)) == (["key", "number"], [("a", 1), ("b", 2)])
        with pytest.raises(StoreGone, match="read-only"), reader._session.transaction() as connection:
            connection.execute("DELETE FROM public.sales")
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
            with (
                pytest.raises(QueryFailed, match="stopped after"),
                reader.scan("sales", 0.05) as (_, rows),
            ):
                list(rows)
    empty = App("other")
    nothing = empty.view(
        "sales", empty.table("sales", Order, key="order"), store=Postgres(url, schema="nowhere")
    )
    assert open_reader(nothing, "other", tmp_path) is None
    assert sql(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'nowhere'") == []


def test_many_views_of_one_schema_can_be_created_at_the_same_time(url: str) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with contextlib.closing(PostgresWriter(url, "together", f"view-{number}")) as store:
                driver = StoreDriver(store)
                driver.serve()
                for batch in range(5):
                    driver.apply(changes(SCHEMA, ("k", batch)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert sql(url, "SELECT count(*), min(batch), max(batch) FROM together._headrace_views") == [(4, 4, 4)]


def test_an_empty_batch_changes_only_the_position(driver: StoreDriver) -> None:
    driver.serve()
    before = driver.position
    driver.store.apply(
        Part.SERVING, Changes(SCHEMA), before, position_of(0), Fence(driver.owner, driver.generation)
    )
    found = driver.store.state(Part.SERVING)
    assert found is not None
    assert found.position == position_of(0)
