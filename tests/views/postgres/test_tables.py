"""Views in PostgreSQL, as their users meet them: what they make on top stays, and zombies block nobody."""

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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, Many, Plain
from headrace.stores import Postgres
from headrace.views.changes import Changes
from headrace.views.errors import (
    QueryFailed,
    ShapeRefused,
    StaleWriter,
    StoreBusy,
    StoreGone,
)
from headrace.views.opening import open_reader
from headrace.views.position import NO_BATCH, Shape
from headrace.views.postgres.columns import KEY_BYTES_MAX
from headrace.views.postgres.reading import PostgresReader
from headrace.views.postgres.store import PostgresStore
from headrace.views.rows import Row
from headrace.views.store import Fence, Part
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE, position_of
from tests.support.waiting import until
from tests.verify.test_topic_views import Order
from tests.views.postgres.looking import sql
from tests.views.seeing import dead_letters, following, produce

WIDE = Shape((*SHAPE.fields, Field("note", Plain("text"), True)), ("key",))
EVERY_TYPE = Shape(
    (
        Field("key", Plain("text"), False),
        Field("n", Plain("int"), True),
        Field("f", Plain("float"), True),
        Field("b", Plain("bool"), True),
        Field("d", Digits(20, 4), True),
        Field("t", Plain("time"), True),
        Field("day", Plain("date"), True),
        Field("raw", Plain("bytes"), True),
        Field("many", Many(Plain("int")), True),
    ),
    ("key",),
)


# What users meet


def test_columns_have_the_types_that_users_of_postgres_expect(hand: Hand, url: str) -> None:
    hand.serve(EVERY_TYPE)
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    rows: list[Row] = [
        ("a", -(2**63), "NaN", True, "1234567890123456.7890", first, "0001-01-01", b"\0\xff", "[1,2]"),
        ("b", 2**63 - 1, float("-inf"), False, "-0.0001", last, "9999-12-31", b"", "[]"),
        ("c", None, None, None, None, None, None, None, None),
        ("d", 0, 5e-324, None, "0.0000", "1969-12-31T23:59:59.999999Z", "1970-01-01", b"\\x", "[ 1 ]"),
    ]
    hand.apply(changes(EVERY_TYPE, *rows))
    assert list(hand.store.rows()) == rows
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


def test_what_users_have_made_on_a_table_stays_when_it_is_built_again(hand: Hand, url: str) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 2), ("c", 3)))
    name = f"reader_{os.getpid()}"
    sql(url, f"CREATE ROLE {name} LOGIN")
    try:
        sql(url, f"GRANT SELECT ON sales TO {name}")
        sql(url, "CREATE INDEX by_number ON sales (number)")
        sql(url, "CREATE VIEW doubled AS SELECT key, number * 2 AS twice FROM sales")
        for shape, more in ((SHAPE, ()), (WIDE, ("new",))):
            hand.begin(shape)
            hand.apply(changes(shape, ("b", 2, *more), ("c", 4, *more), ("d", 5, *more)), Part.BUILDING)
            at, hand.position = hand.position, position_of(NO_BATCH)
            hand.position = at
            assert sql(url, "SELECT count(*) FROM doubled") == [(3,)]
            hand.store.swap(hand.fence)
            assert sql(url, "SELECT * FROM doubled ORDER BY key") == [("b", 4), ("c", 8), ("d", 10)]
            theirs = url.replace("postgres@", f"{name}@")
            assert sql(theirs, "SELECT key, number FROM sales WHERE number = 4") == [("c", 4)]
            assert sql(url, "SELECT 1 FROM pg_indexes WHERE indexname = 'by_number'") == [(1,)]
            assert list(hand.store.rows()) == [("b", 2, *more), ("c", 4, *more), ("d", 5, *more)]
    finally:
        sql(url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_rebuild_writes_only_the_rows_that_differ(hand: Hand, url: str) -> None:
    hand.serve(EVERY_TYPE)
    same = ("a", 1, "NaN", True, "1.0000", "2026-01-31T12:00:00.000000Z", "2026-01-31", b"x", "[1]")
    hand.apply(changes(EVERY_TYPE, same, ("b", *[None] * 8)))
    (before,) = sql(url, "SELECT xmin::text FROM sales WHERE key = 'a'")
    hand.begin(EVERY_TYPE)
    hand.apply(changes(EVERY_TYPE, same, ("b", 2, *[None] * 7)), Part.BUILDING)
    hand.store.swap(hand.fence)
    assert sql(url, "SELECT xmin::text FROM sales WHERE key = 'a'") == [before]
    assert list(hand.store.rows()) == [same, ("b", 2, *[None] * 7)]


def test_a_transaction_that_began_before_a_rebuild_sees_the_rows_from_before_it(hand: Hand, url: str) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT batch FROM _headrace_views").fetchall() == [(0,)]
        hand.begin()
        hand.apply(changes(SHAPE, ("b", 2)), Part.BUILDING)
        hand.store.swap(hand.fence)
        assert reader.execute("SELECT * FROM sales").fetchall() == [("a", 1)]
    assert list(hand.store.rows()) == [("b", 2)]


def test_a_column_that_something_depends_on_stays_until_that_is_dropped(hand: Hand, url: str) -> None:
    hand.serve(WIDE)
    hand.apply(changes(WIDE, ("a", 1, "x")))
    sql(url, "CREATE VIEW notes AS SELECT note FROM sales")
    at = hand.position
    hand.begin(SHAPE)
    with pytest.raises(StoreBusy, match="depends on") as told:
        hand.store.swap(hand.fence)
    assert "notes" in told.value.detail
    assert told.value.retriable
    assert sql(url, "SELECT * FROM notes") == [("x",)]
    sql(url, "DROP VIEW notes")
    hand.store.swap(hand.fence)
    assert list(hand.store.rows()) == []
    assert at != hand.position


def test_a_view_may_get_another_key(hand: Hand, url: str) -> None:
    hand.serve(WIDE)
    hand.apply(changes(WIDE, ("a", 1, "x"), ("b", 1, "y")))
    other = Shape(WIDE.fields, ("number",))
    hand.begin(other)
    hand.apply(changes(other, (None, 1, None), ("b", 2, "z")), Part.BUILDING)  # type: ignore[arg-type]
    hand.store.swap(hand.fence)
    assert list(hand.store.rows()) == [(None, 1, None), ("b", 2, "z")]
    hand.apply(changes(other, ("c", 2, None), gone=((1,),)))
    assert list(hand.store.rows()) == [("c", 2, None)]


@pytest.mark.parametrize(
    "fields",
    [
        [Field("x" * 64, Plain("text"), True)],
        [Field("a\0b", Plain("text"), True)],
        [Field(f"c{n}", Plain("int"), True) for n in range(1_700)],
    ],
    ids=["long name", "NUL", "too many"],
)
def test_a_shape_that_postgres_cannot_hold_is_refused(hand: Hand, fields: list[Field]) -> None:
    with pytest.raises(ShapeRefused):
        hand.begin(Shape((*SHAPE.fields, *fields), ("key",)))
    hand.serve()


def test_large_batches_of_new_keys_and_of_old_ones_are_all_there_each_once(hand: Hand, url: str) -> None:
    hand.serve()
    rng = random.Random(1)
    right: dict[str, int] = {}
    for batch in range(12):
        first = batch * 150 if batch % 3 else max(0, batch * 150 - 20)
        rows: list[Row] = [(f"k{number}", rng.randrange(10**6)) for number in range(first, first + 150)]
        hand.apply(changes(SHAPE, *rows))
        right |= dict(rows)  # type: ignore[arg-type]
        assert dict(sql(url, "SELECT key, number FROM sales")) == right


def test_rows_are_tried_in_their_place_ever_more_rarely_while_their_keys_are_there_already(
    hand: Hand, url: str
) -> None:
    hand.serve()
    sql(url, "CREATE SEQUENCE statements")
    # What a sequence has given is not taken back with a savepoint: it counts tries that failed as well.
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
        hand.apply(changes(SHAPE, *((f"k{number}", number) for number in range(first, first + 100))))
        return int(sql(url, "SELECT nextval('statements')")[0][0] - before - 1)

    assert statements(0) == 1
    tried = [batch for batch in range(16) if statements(0) == 2]
    assert tried == [0, 2, 6, 14]
    assert sql(url, "SELECT count(*) FROM sales") == [(100,)]


def test_names_that_only_quotes_can_hold_are_names(url: str) -> None:
    shape = Shape((Field('a"%s b', Plain("text"), False), Field("gone0", Plain("int"), True)), ('a"%s b',))
    with contextlib.closing(PostgresStore(url, 'Odd "schema', "Sales.by-day")) as store:
        hand = Hand(store)
        hand.serve(shape)
        hand.apply(changes(shape, ("x", 1), ("y", 2)))
        hand.apply(changes(shape, gone=(("x",),)))
        hand.begin(shape)
        hand.apply(changes(shape, ("z", 3)), Part.BUILDING)
        store.swap(hand.fence)
        assert list(store.rows()) == [("z", 3)]
    assert sql(url, 'SELECT * FROM "Odd ""schema"."Sales.by-day"') == [("z", 3)]


# What cannot be held


def test_a_row_that_cannot_be_held_becomes_a_dead_letter_and_the_view_goes_on(
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


def test_a_key_of_many_columns_has_room_for_all_of_them(hand: Hand) -> None:
    numbers = [Field(f"n{at}", Plain("int"), False) for at in range(20)]
    shape = Shape((Field("key", Plain("text"), False), *numbers), ("key", *(one.name for one in numbers)))
    refusals, rng = hand.store.refusals(shape), random.Random(1)
    assert refusals is not None
    hand.serve(shape)
    fits = 0
    for size in range(KEY_BYTES_MAX - 600, KEY_BYTES_MAX + 1, 100):
        # Of what cannot be made shorter.
        row: Row = ("".join(rng.choices(string.printable, k=size)), *range(20))
        with contextlib.suppress(ValueDoesNotFit):
            refusals.row(row)
            hand.apply(changes(shape, row))
            fits += 1
    assert 0 < fits < 7


# Zombies


_ZOMBIE = """
import sys
import threading
from headrace.views.postgres.store import PostgresStore
from headrace.views.postgres.table import PostgresTable
from headrace.views.rows import Row
from headrace.views.store import Fence, Part
from tests.contract.store_writer import SHAPE, changes_of, position_of
store = PostgresStore(sys.argv[1], "public", "sales")
fence = Fence(store.take("zombie", 1), 1)
change = PostgresTable.change
def slowly(self, connection, changes):
    if sys.argv[2] == "inside":
        change(self, connection, changes)
        print("here", flush=True)
        sys.stdin.readline()
    else:
        with connection.cursor().copy(f"COPY {self._stage} (key) FROM STDIN") as copy:
            copy.write(b"half a row")
            print("here", flush=True)
            sys.stdin.readline()
PostgresTable.change = slowly
try:
    store.apply(Part.SERVING, changes_of(0), position_of(-1), position_of(0), fence)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("point", ["inside", "copying"])
def test_a_follower_that_sleeps_in_its_transaction_holds_up_no_successor(
    hand: Hand, url: str, point: str
) -> None:
    """SIGSTOP: its kernel still answers for it, so that the server takes it for alive."""
    hand.serve()
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
        with contextlib.closing(PostgresStore(url, "public", "sales")) as store:
            successor = Hand(store)
            successor.apply(changes(SHAPE, ("a", 1)))
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
    assert list(hand.store.rows()) == [("a", 1)]
    with pytest.raises(StaleWriter):
        hand.store.take("first", 1, hand.owner)


def test_who_holds_the_lock_and_is_no_follower_is_left_alone(hand: Hand, url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM _headrace_owners FOR UPDATE")
        with pytest.raises(StoreBusy) as told:
            hand.store.take("hand", 1)
        assert told.value.retriable
        assert other.execute("SELECT 1").fetchone() == (1,)
    assert hand.store.take("hand", 1).epoch == 2


# Looking


def test_a_reader_sees_what_serves_and_changes_nothing(hand: Hand, url: str, tmp_path: Path) -> None:
    app = App("shop")
    view = app.view("sales", app.table("sales", Order, key="order"), store=Postgres(url))
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 2)))
    hand.begin(WIDE)
    reader = open_reader(view, "shop", tmp_path)
    assert isinstance(reader, PostgresReader)
    with contextlib.closing(reader):
        assert [(one.view, one.part, one.batch) for one in reader.known()] == [
            ("sales", Part.SERVING, 0),
            ("sales", Part.BUILDING, NO_BATCH),
        ]
        assert reader.count("sales") == 2
        with reader.reading("sales", 5) as (names, rows):
            assert (names, sorted(rows)) == (["key", "number"], [("a", 1), ("b", 2)])
        with pytest.raises(StoreGone, match="read-only"), reader._session.transaction() as connection:
            connection.execute("DELETE FROM public.sales")
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
            with (
                pytest.raises(QueryFailed, match="stopped after"),
                reader.reading("sales", 0.05) as (_, rows),
            ):
                list(rows)
    empty = App("other")
    nothing = empty.view(
        "sales", empty.table("sales", Order, key="order"), store=Postgres(url, schema="nowhere")
    )
    assert open_reader(nothing, "other", tmp_path) is None
    assert sql(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'nowhere'") == []


def test_many_views_of_one_schema_are_begun_at_the_same_time(url: str) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with contextlib.closing(PostgresStore(url, "together", f"view-{number}")) as store:
                hand = Hand(store)
                hand.serve()
                for batch in range(5):
                    hand.apply(changes(SHAPE, ("k", batch)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert sql(url, "SELECT count(*), min(batch), max(batch) FROM together._headrace_views") == [(4, 4, 4)]


def test_an_empty_batch_moves_the_position_alone(hand: Hand) -> None:
    hand.serve()
    before = hand.position
    hand.store.apply(Part.SERVING, Changes(SHAPE), before, position_of(0), Fence(hand.owner, hand.generation))
    found = hand.store.standing(Part.SERVING)
    assert found is not None
    assert found.position == position_of(0)
