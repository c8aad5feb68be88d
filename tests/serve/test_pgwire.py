"""PostgreSQL's protocol: psql, psycopg and SQLAlchemy, with rows, types and positions."""

from __future__ import annotations

import base64
import datetime
import json
import os
import subprocess
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.http.tokens import TokenBook, tokens_path
from tests.serve.every_store import STORES, sample_rows
from tests.serve.pg_bytes import message, raw
from tests.serve.sql_server import COUNT, ORDERS, connect, write_rows


def _psql(port: int, *arguments: str) -> str:
    done = subprocess.run(
        ["psql", "-X", "-h", "127.0.0.1", "-p", str(port), "-U", "me", "-d", "shop", "-v", "ON_ERROR_STOP=1",
         *arguments],
        capture_output=True,
        timeout=240,
        text=True,
        env={**os.environ, "PGPASSWORD": "", "PGCONNECT_TIMEOUT": "30"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_psql_lists_and_describes_tables_and_queries_them(sql_port: int) -> None:
    arguments = [
        r"\dt",
        r"\d",
        r"\d lite_things",
        rf'\d "{ORDERS}"',
        r"\dn",
        r"\l",
        r"\di",
        r"\dt+",
        r"\du",
        r"\df",
    ]
    result = _psql(sql_port, *(part for argument in arguments for part in ("-c", argument)))
    assert all(f"{store}_things" in result for store in STORES)
    assert "thing_id | text " in result
    assert "numeric(18,6)" in result
    assert '"lite_things_pkey" PRIMARY KEY, btree (thing_id)' in result
    assert f'"{ORDERS}_pkey" PRIMARY KEY, btree (product_id, order_id)' in result
    sql = "SELECT thing_id, price FROM postgres_things WHERE number IN (118, 119) ORDER BY 1; SELECT E'a\\'; b', 1;"
    request = _psql(sql_port, "-At", "-c", sql)
    assert request.splitlines() == ["t0118|88.500000", "t0119|89.250000", "a'; b|1"]


def test_psycopg_reads_every_type_in_text_and_binary(sql_port: int, sql_http: Http) -> None:
    columns = 'thing_id, number, name, price, weight, good, "at", day, raw, tags'
    rows = [_typed(row) for row in sql_http.rows("lite_things")]
    with connect(sql_port) as connection:
        for store, binary in zip(STORES, (True, False, True, False, True), strict=True):
            sql = f"SELECT {columns} FROM {store}_things ORDER BY thing_id"
            assert _comparable(connection.execute(sql, binary=binary).fetchall()) == _comparable(rows), (
                store,
                binary,
            )
        sql = (
            "SELECT 1::INT, 9::SMALLINT, -12345678901234567890.000123::DECIMAL(38,6), 1.5::FLOAT, NULL, TIME '12:30',"
            " TIMESTAMP '2026-01-31 12:00:00.5', uuid '00000000-0000-0000-0000-000000000001',"
            " [1, NULL]::BIGINT[], ['a', 'b \"c\"', NULL, ''], []::INT[], [[1]], {'a': 1}, true"
        )
        for binary in (False, True):
            (row,) = connection.execute(sql, binary=binary).fetchall()
            assert row[:5] == (1, 9, Decimal("-12345678901234567890.000123"), 1.5, None)
            assert str(row[5]) == "12:30:00"
            assert row[6] == datetime.datetime(2026, 1, 31, 12, 0, 0, 500_000)
            assert str(row[7]).endswith("01")
            assert row[8:11] == ([1, None], ["a", 'b "c"', None, ""], [])
            assert (row[11], json.loads(row[12]), row[13]) == ("[[1]]", {"a": 1}, True)


def _typed(row: dict[str, Any]) -> tuple[Any, ...]:
    """Convert a row of an HTTP response to the types of the driver."""
    return (
        row["thing_id"], row["number"], row["name"],
        None if row["price"] is None else Decimal(str(row["price"])).quantize(Decimal("0.000001")),
        None if row["weight"] is None else float(row["weight"]), row["good"],
        row["at"] and datetime.datetime.fromisoformat(row["at"]),
        row["day"] and datetime.date.fromisoformat(row["day"]),
        None if row["raw"] is None else base64.b64decode(row["raw"]), row["tags"],
    )  # fmt: skip


def _comparable(rows: list[tuple[Any, ...]]) -> str:
    """Convert rows so that equal rows compare equal, including NaN."""
    return repr(
        [
            [
                value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value
                for value in row
            ]
            for row in rows
        ]
    )


def test_parameters_are_typed_values_and_arrays_are_lists_of_values(sql_port: int) -> None:
    timestamp = datetime.datetime(2026, 1, 31, 12, 0, 7, 7, tzinfo=datetime.UTC)
    cases: list[tuple[str, list[Any], int]] = [
        ("thing_id = %s AND price < %s AND number > %s", ["t0009", Decimal("7.5"), 2], 1),
        ('"at" = %s OR day = %s', [timestamp, datetime.date(2026, 2, 3)], 5),
        ("thing_id = ANY(%s)", [["t0009", "t0010", 'x"\\,{']], 2),
        ("thing_id <> ALL(%s)", [["t0009", "t0010", None]], 0),
        ("number = ANY(%s)", [[9, 10, 2**40]], 2),
        ("price = ANY(%s)", [[Decimal("6.75"), Decimal("7.500")]], 2),
        ("thing_id = ANY(%s)", [[]], 0),
        ("raw = %s AND number < 3", [bytes.fromhex("00ff275c78")], 3),
        ("good = %s AND number < %s AND number > %s", [True, 10, 0], 1),
        ("list_contains(%s::VARCHAR[], thing_id)", [["t0001"]], 1),
        ("name IS NOT DISTINCT FROM %s AND number < 20", [None], 1),
    ]
    with connect(sql_port, autocommit=True) as connection:
        for where, values, count in cases:
            text = "SELECT count(*) FROM lite_things WHERE " + where
            for form in ("%s", "%b", "%t"):
                assert connection.execute(text.replace("%s", form), values).fetchall() == [(count,)], (
                    where,
                    form,
                )
        for _ in range(7):
            # From the fifth execution on psycopg prepares the statement.
            rows = connection.execute(
                "SELECT thing_id FROM redis_things WHERE thing_id = %s", ["t0003"]
            ).fetchall()
            assert rows == [("t0003",)]
        hostile = "'; DROP TABLE x; --"
        assert connection.execute("SELECT %s, $$a;b$$, 'it''s'", [hostile]).fetchall() == [
            (hostile, "a;b", "it's")
        ]


def test_a_server_side_cursor_returns_its_rows_in_portions(sql_port: int) -> None:
    with connect(sql_port) as connection:
        with connection.cursor(name='odd "name"', binary=True) as cursor:
            cursor.itersize = 7
            cursor.execute(
                "SELECT number FROM lite_things WHERE number >= %s AND number < 1000 ORDER BY 1", [20]
            )
            assert cursor.description is not None
            assert cursor.description[0].name == "number"
            assert cursor.fetchmany(3) == [(20,), (21,), (22,)]
            cursor.scroll(2)
            assert [row[0] for row in cursor] == [*range(25, COUNT)]
            assert cursor.fetchone() is None
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute('FETCH 1 FROM "odd ""name"""')
        connection.rollback()
        connection.execute("DECLARE c CURSOR FOR SELECT * FROM range(5)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="forward"):
            connection.execute("FETCH BACKWARD 1 FROM c")
        connection.rollback()
        held = connection.cursor(name="held", withhold=True)
        held.execute("SELECT * FROM range(5)")
        connection.commit()
        assert held.fetchall() == [(0,), (1,), (2,), (3,), (4,)]
        held.close()
        connection.commit()
        connection.autocommit = True
        with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
            connection.execute("DECLARE c CURSOR FOR SELECT 1")


def test_errors_have_an_sqlstate_and_a_failed_transaction_accepts_only_a_rollback(sql_port: int) -> None:
    errors = psycopg.errors
    with connect(sql_port) as connection:
        for sql, kind in (
            ("SELECT * FROM nothing", errors.UndefinedTable),
            ("DELETE FROM lite_things", errors.ReadOnlySqlTransaction),
            ("SELECT * FROM range(2000)", errors.ProgramLimitExceeded),
            ("SELECT * FRM x", errors.SyntaxError),
            ("SET work_mem = '1GB'", errors.FeatureNotSupported),
            ("SELECT * FROM search('delta_things', 'x')", errors.FeatureNotSupported),
        ):
            with pytest.raises(kind):
                connection.execute(sql)
            with pytest.raises(errors.InFailedSqlTransaction):
                connection.execute("SELECT 1")
            connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_sqlalchemy_finds_schemas_tables_columns_and_keys(sql_port: int, sql_app: App) -> None:
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://me@127.0.0.1:{sql_port}/shop")
    try:
        inspector = sqlalchemy.inspect(engine)
        assert "public" in inspector.get_schema_names()
        assert inspector.default_schema_name == "public"
        assert sorted(inspector.get_table_names()) == sorted(view.name for view in sql_app.views)
        assert inspector.get_view_names(schema="public") == []
        assert inspector.has_table("lite_things")
        assert not inspector.has_table("nothing")
        columns = {
            column["name"]: (str(column["type"]), column["nullable"])
            for column in inspector.get_columns("lite_things")
        }
        assert columns == {
            "thing_id": ("TEXT", False), "number": ("BIGINT", False), "name": ("TEXT", True),
            "price": ("NUMERIC(18, 6)", True), "weight": ("DOUBLE PRECISION", True), "good": ("BOOLEAN", True),
            "at": ("TIMESTAMP", True), "day": ("DATE", True), "raw": ("BYTEA", True), "tags": ("JSON", True),
        }  # fmt: skip
        assert inspector.get_pk_constraint(ORDERS, schema="public")["constrained_columns"] == [
            "product_id",
            "order_id",
        ]
        assert (
            inspector.get_foreign_keys(ORDERS)
            == inspector.get_indexes(ORDERS)
            == inspector.get_unique_constraints(ORDERS)
            == []
        )
        table = sqlalchemy.Table("delta_things", sqlalchemy.MetaData(), autoload_with=engine)
        statement = sqlalchemy.select(table.c.thing_id, sqlalchemy.func.count()).where(
            table.c.number.in_([9, 10]), table.c.thing_id.like("t%")
        )
        with engine.connect() as connection:
            rows = connection.execute(
                statement.group_by(table.c.thing_id).order_by(table.c.thing_id)
            ).fetchall()
        assert [tuple(row) for row in rows] == [("t0009", 1), ("t0010", 1)]
    finally:
        engine.dispose()


def test_other_catalog_queries_of_tools_return_their_rows(sql_port: int, sql_app: App) -> None:
    with connect(sql_port, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 2"
        ).fetchall()
        assert tables == [
            ("public", name, "BASE TABLE") for name in sorted(view.name for view in sql_app.views)
        ]
        key = connection.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
            " AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY 1",
            [f'public."{ORDERS}"'],
        ).fetchall()
        assert key == [("order_id",), ("product_id",)]
        result = connection.execute(
            'SELECT current_database(), current_schema(), current_user, u."user" FROM (SELECT 5 AS "user") u'
        )
        assert result.fetchall() == [("shop", "public", "me", 5)]
        assert result.description is not None
        assert [column.name for column in result.description][1:3] == ["current_schema", "current_user"]
        assert connection.execute("SHOW server_version").fetchone() == ("15.0",)
        connection.execute("SET application_name = 'x'")


def test_a_statement_waits_for_a_token_and_returns_the_positions_of_its_views(
    sql_port: int, sql_http: Http, sql_app: App
) -> None:
    with connect(sql_port, autocommit=True) as connection:
        connection.execute("SELECT count(*) FROM lite_things a JOIN delta_things b USING (thing_id)")
        document = json.loads(connection.info.parameter_status("headrace.positions") or "")
        views = ("lite_things", "delta_things")
        own = {
            view: sql_http.get(f"/v1/views/{view}/rows", limit=1).expect(200)["position"] for view in views
        }
        assert document == own
        (setting,) = connection.execute("SHOW headrace.positions").fetchone() or ("",)
        assert json.loads(setting) == document
        connection.execute("SELECT 1")
        assert connection.info.parameter_status("headrace.positions") == "{}"
        connection.execute("SET headrace.wait = '20s'")
        for number in range(3):
            token = write_rows(sql_http, sql_app, [{**sample_rows(1)[0], "thing_id": f"w{number}"}])
            connection.execute(f"SET headrace.after = '{token}'")
            cursor = connection.execute(
                "SELECT thing_id FROM postgres_things WHERE thing_id = %s", [f"w{number}"]
            )
            assert cursor.fetchall() == [(f"w{number}",)]
        assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SET headrace.after = 'nonsense'")
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("SET headrace.wait = 'long'")
        deletions = [{"key": {"thing_id": f"w{number}"}, "value": None} for number in range(3)]
        path = f"/v1/topics/{sql_app.topics[0].name}/records"
        token = sql_http.post(path, {"records": deletions}).expect(200)["token"]
        connection.execute(f"SET headrace.after = '{token}'")
        for store in STORES:
            assert connection.execute(f"SELECT count(*) FROM {store}_things").fetchone() == (COUNT,)


def test_a_connection_stays_usable_after_a_cancelled_statement(sql_port: int, sql_http: Http) -> None:
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7"
    received: list[BaseException] = []

    def send(connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute(endless)
        except BaseException as error:
            received.append(error)

    with connect(sql_port, autocommit=True) as connection:
        thread = threading.Thread(target=send, args=[connection])
        thread.start()
        until(lambda: "headrace_pg_under_way 1" in _metrics(sql_http), "the statement to be under way")
        # Connection.cancel() would block this process, which runs the server.
        connection.cancel_safe()
        thread.join()
        assert isinstance(received[0], psycopg.errors.QueryCanceled), received
        assert "the client cancelled" in str(received[0])
        assert connection.execute("SELECT 42").fetchone() == (42,)


def _metrics(http: Http) -> str:
    return http.get("/metrics").body.decode()


def test_a_disconnect_cancels_the_running_statement(sql_port: int, sql_http: Http) -> None:
    with raw(sql_port) as wire:
        wire.sendall(
            message(
                b"Q",
                b"SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7\0",
            )
        )
        until(lambda: "headrace_pg_under_way 1" in _metrics(sql_http), "the statement to be under way")
    until(lambda: "headrace_pg_under_way 0" in _metrics(sql_http), "the statement to be cancelled")


def test_connections_statements_and_errors_are_counted(sql_port: int, sql_http: Http) -> None:
    def value(name: str) -> float:
        return sum(
            float(line.split()[-1]) for line in _metrics(sql_http).splitlines() if line.startswith(name)
        )

    names = (
        "connections_total",
        "statements_total",
        "rows_total",
        'errors_total{state="42P01"}',
        "statement_seconds_count",
    )
    before = [value(f"headrace_pg_{name}") for name in names]
    lines = len(sql_http.server_log.lines)  # type: ignore[attr-defined]
    with connect(sql_port, autocommit=True) as connection:
        connection.execute("SELECT * FROM range(3)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nothing")
        assert value("headrace_pg_connections ") >= 1
    after = [value(f"headrace_pg_{name}") for name in names]
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [1, 2, 3, 1, 2]
    log_lines = [json.loads(line) for line in sql_http.server_log.lines[lines:] if '"postgres"' in line]  # type: ignore[attr-defined]
    assert [(entry["status"], entry.get("code")) for entry in log_lines] == [
        (200, None),
        (404, "HR-SERVE-NOT-THERE"),
    ]


def test_the_password_is_a_token_whose_scopes_apply(
    sql_app: App, cluster: Cluster, sql_home: Path, tmp_path: Path, sql_http: Http
) -> None:
    (tmp_path / "shop.db").symlink_to(sql_home / "shop.db")
    token = token_for(tmp_path, "reader", "read:view:lite_things")
    with served(sql_app, cluster, tmp_path, pg_listen="127.0.0.1:0", sql_processes=1) as client:
        port = client.server.pg_port  # type: ignore[attr-defined]
        for wrong in ("", "x", token[:-1] + ("a" if token[-1] != "a" else "b")):
            with pytest.raises(psycopg.OperationalError, match=r"unknown, revoked|password"):
                connect(port, password=wrong)
        with connect(port, password=token, autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM lite_things").fetchone() == (COUNT,)
            for sql in (
                f'SELECT count(*) FROM "{ORDERS}"',
                "SELECT 1 FROM lite_things, delta_things",
                "TABLE nothing",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(sql)
            listed = connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
            assert listed == [("lite_things",)]
            TokenBook(tokens_path(tmp_path)).revoke("reader")

            def refused() -> bool:
                try:
                    connection.execute("SELECT 1")
                except psycopg.OperationalError:
                    return True
                return False

            until(refused, "the token to be revoked")
