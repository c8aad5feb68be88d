"""SQL over views of every store: the rows of the stores at one position, and reads only."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.http.tokens import TokenBook, tokens_path
from headrace.stores.registry import open_writer
from tests.serve.every_store import STORES, sample_rows
from tests.serve.hostile_statements import REFUSED, WORDS
from tests.serve.result_events import results
from tests.serve.sql_server import COUNT, run_sql, write_rows


@pytest.fixture(scope="module")
def home(sql_home: Path) -> Path:
    return sql_home


@pytest.fixture(scope="module")
def app(sql_app: App) -> App:
    return sql_app


@pytest.fixture(scope="module")
def http(sql_http: Http) -> Http:
    return sql_http


@pytest.mark.parametrize("store", STORES)
def test_sql_returns_the_rows_and_the_position_of_the_store(http: Http, store: str) -> None:
    view = f"{store}_things"
    before = http.get(f"/v1/views/{view}/rows", limit=1_000).expect(200)
    result = run_sql(http, f"SELECT * FROM {view} ORDER BY thing_id")
    after = http.get(f"/v1/views/{view}/rows", limit=1_000).expect(200)
    names = [column["name"] for column in result["columns"]]
    assert [dict(zip(names, row, strict=True)) for row in result["rows"]] == before["rows"]
    assert len(before["rows"]) == COUNT
    # An idle follower still stores its position once a minute, with a new time: perhaps between two of these reads.
    assert result["positions"][view] in (before["position"], after["position"])
    assert list(result["positions"]) == [view]
    assert [column["type"] for column in result["columns"]] == [
        *("VARCHAR", "BIGINT", "VARCHAR", "DECIMAL(18,6)", "DOUBLE", "BOOLEAN"),
        *("TIMESTAMP WITH TIME ZONE", "DATE", "BLOB", "JSON"),
    ]


_CONDITIONS = (
    ("number >= 100", "number >= 100"),
    ("thing_id = 't0007'", 'thing_id = "t0007"'),
    ("thing_id IN ('t0001', 't0002', 'x')", 'thing_id in ("t0001", "t0002", "x")'),
    ("thing_id LIKE 't000%' AND number > 0", 'thing_id startswith "t000" and number > 0'),
    (
        "\"at\" < '2026-01-31 12:00:07Z' AND name <> 'NULL'",
        'at < "2026-01-31T12:00:07Z" and not (name = "NULL" or name = null)',
    ),
    ("day >= '2026-02-20' OR name IS NULL", 'day >= "2026-02-20" or name = null'),
    ("price > 60.5 AND good", "price > 60.5 and good = true"),
    ("name = 'it''s \"quoted\", with\nlines'", 'name = "it\'s \\"quoted\\", with\\nlines"'),
    ("weight > 10 AND weight < 'NaN'", "weight > 10 and weight < 1e300"),
)


@pytest.mark.parametrize("store", STORES)
def test_a_where_clause_selects_the_same_rows_as_the_filter_of_the_store(http: Http, store: str) -> None:
    for sql, own in _CONDITIONS:
        sql_rows = run_sql(http, f"SELECT thing_id FROM {store}_things WHERE {sql} ORDER BY 1")["rows"]
        rows = http.rows(f"{store}_things", filter=own)
        assert [row[0] for row in sql_rows] == [row["thing_id"] for row in rows], sql


def test_one_statement_joins_views_of_all_stores_and_has_the_position_of_each(http: Http) -> None:
    joined = " ".join(f"JOIN {store}_things {store[0]}{store[2]} USING (thing_id)" for store in STORES[1:])
    result = run_sql(
        http,
        f"SELECT count(*), sum(lite_things.price), max(pt.at) FROM lite_things {joined}".replace(
            "pt.at", 'ps."at"'
        ),
    )
    price = sum((row["price"] or 0) for row in http.rows("lite_things"))
    assert result["rows"] == [[COUNT, price, "2026-01-31T12:00:58.000058Z"]] or result["rows"][0][:2] == [
        COUNT,
        price,
    ]
    assert set(result["positions"]) == {f"{store}_things" for store in STORES}
    again = run_sql(
        http, 'WITH c AS (SELECT * FROM "Lite_Things") SELECT count(*) FROM c a, c b, public.delta_things'
    )
    assert again["rows"] == [[COUNT**3]]
    assert set(again["positions"]) == {"Lite_Things", "delta_things"}


def test_parameters_are_values_and_match_searches_words(http: Http) -> None:
    result = run_sql(http, "SELECT thing_id, $2 FROM postgres_things WHERE name = $1 ORDER BY 1", "n,1", 'x"')
    assert [row[0] for row in result["rows"]] == [
        row["thing_id"] for row in http.rows("postgres_things", filter='name = "n,1"')
    ]
    assert result["rows"][0][1] == 'x"'
    hits = run_sql(
        http,
        "SELECT count(*), count(r.thing_id) FROM search('search_things', 'padded') s LEFT JOIN redis_things r"
        " ON r.thing_id = s.thing_id",
    )
    own = http.rows("search_things", match="padded")
    assert hits["rows"] == [[len(own), len(own)]]
    assert set(hits["positions"]) == {"search_things", "redis_things"}
    refused = http.post("/v1/sql", {"sql": "SELECT * FROM search('delta_things', 'x')"})
    assert "no full-text index" in refused.expect(422)["detail"]


def test_arrow_has_the_same_rows_and_the_positions_in_a_header(http: Http) -> None:
    sql = "SELECT thing_id, number, price FROM delta_things WHERE number < 50 ORDER BY 1"
    reply = http.post("/v1/sql", {"sql": sql}, format="arrow")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/vnd.apache.arrow.stream")
    table = pa.ipc.open_stream(io.BytesIO(reply.body)).read_all()
    result = run_sql(http, sql)
    assert [[row["thing_id"], row["number"]] for row in table.to_pylist()] == [
        row[:2] for row in result["rows"]
    ]
    assert table.schema.field("price").type == pa.decimal128(18, 6)
    positions = json.loads(reply.headers["headrace-positions"])
    # The follower may store its position with a new time between the two reads.
    assert positions["delta_things"]["token"] == result["positions"]["delta_things"]["token"]


def test_a_statement_reads_earlier_writes(http: Http, app: App) -> None:
    for number in range(3):
        token = write_rows(http, app, [{**sample_rows(1)[0], "thing_id": f"z{number}"}])
        result = run_sql(
            http,
            "SELECT (SELECT count(*) FROM lite_things WHERE thing_id = $1) + (SELECT count(*) FROM delta_things"
            " WHERE thing_id = $1) + (SELECT count(*) FROM postgres_things WHERE thing_id = $1)",
            f"z{number}",
            after=token,
            wait="20s",
        )
        assert result["rows"] == [[3]]
    path = f"/v1/topics/{app.topics[0].name}/records"
    deletions = [{"key": {"thing_id": f"z{number}"}, "value": None} for number in range(3)]
    token = http.post(path, {"records": deletions}).expect(200)["token"]
    for store in STORES:
        run_sql(http, f"SELECT 1 FROM {store}_things", after=token, wait="20s")
    unfit = http.post("/v1/sql", {"sql": "SELECT 1"}, after=token)
    assert unfit.expect(400)["code"] == "HR-SERVE-AFTER"


# Only reading


def test_everything_but_a_plain_select_is_refused_before_a_store_is_read(http: Http) -> None:
    for number, sql in enumerate(REFUSED):
        for variant in (sql, (f"/* x */ {sql.lower()} ;", f"-- y\n{sql}")[number % 2]):
            reply = http.post("/v1/sql", {"sql": variant})
            assert reply.status == 400, (variant, reply.body)
            assert reply.json["code"] in ("HR-SERVE-SQL-REFUSED", "HR-SERVE-SQL"), (variant, reply.body)
    for name in ("/etc/passwd", "x.csv", "incoming", "pg_class", "duckdb_tables", "sqlite_master"):
        assert http.post("/v1/sql", {"sql": f'SELECT * FROM "{name}"'}).status == 404
    assert not [*Path("/tmp").glob("headrace-stolen*")]


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, max_size=14), letters=st.text(max_size=3))
def test_no_mix_of_keywords_writes_or_causes_an_internal_error(
    http: Http, words: list[str], letters: str
) -> None:
    reply = http.post("/v1/sql", {"sql": " ".join([*words, letters])})
    assert reply.status in (200, 400, 404, 422, 504), (words, reply.body)
    assert not [*Path("/tmp").glob("headrace-stolen*")]


def test_hostile_statements_leave_the_stores_unchanged(http: Http) -> None:
    for store in STORES:
        assert len(http.rows(f"{store}_things")) == COUNT


# Limits


@pytest.fixture(scope="module")
def short_limits_http(sql_app: App, cluster: Cluster, sql_home: Path, sql_http: Http) -> Iterator[Http]:
    limits = {"sql_ms": 1_500, "sql_rows_max": 1_000, "sql_memory_mb": 96, "sql_processes": 1}
    with served(sql_app, cluster, sql_home, **limits) as client:
        assert client.post("/v1/sql", {"sql": "SELECT 1"}).status == 200
        yield client


@pytest.mark.parametrize(
    ("sql", "status", "message"),
    [
        (
            "WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
            504,
            "1.5 s",
        ),
        (
            "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7",
            504,
            "1.5 s",
        ),
        ("SELECT length(repeat('a', 1000000000)) + length(repeat('b', 1000000000))", None, ""),
        ("SELECT list(range) FROM range(100000000)", 422, "96 MiB"),
        ("SELECT * FROM range(1001)", 422, "1000 rows"),
        ("SELECT repeat('x', 20000) FROM range(900)", 422, "bytes"),
        ("SELECT count(*) FROM (SELECT DISTINCT md5(range::VARCHAR) FROM range(50000000))", None, ""),
        ("SELECT " + "(SELECT " * 3_000 + "1" + ")" * 3_000, 400, ""),
        ("SELECT 1" + " + 1" * 20_000, 400, ""),
        ("SELECT " + " || ".join(["'x'"] * 30_000), 422, "100000"),
    ],
)
def test_a_hostile_statement_is_stopped_at_a_limit_and_the_next_one_runs(
    http: Http, short_limits_http: Http, sql: str, status: int | None, message: str
) -> None:
    # Memory must run out before time does, however busy the machine is.
    reply = (http if message in ("96 MiB", "bytes") else short_limits_http).post("/v1/sql", {"sql": sql})
    assert reply.status == status or (status is None and reply.status in (422, 503, 504)), reply.body
    assert message in reply.json["detail"]
    assert reply.json.get("next") or reply.status == 400
    until(
        lambda: short_limits_http.post("/v1/sql", {"sql": "SELECT 42"}).json.get("rows") == [[42]],
        "the next response",
    )


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_value_that_no_response_can_hold_fails_only_its_statement(http: Http, form: str) -> None:
    def ended_count() -> str:
        page = http.get("/metrics").body.decode()
        return next(line for line in page.splitlines() if line.startswith("headrace_sql_ended_total "))

    before = ended_count()
    for sql in (
        "SELECT 1e999",
        f"SELECT {'9' * 400}",
        "SELECT number FROM lite_things WHERE number < -1e999",
        "SELECT 1::VARIANT",
        *(("SELECT ROW(1, 2)", "SELECT '[NaN]'::JSON", "SELECT '[1,]'::JSON") if form == "json" else ()),
    ):
        refused = http.post("/v1/sql", {"sql": sql}, format=form).expect(400)
        assert (refused["code"], bool(refused["next"])) == ("HR-SERVE-SQL", True), sql
    assert ended_count() == before


def test_a_statement_sees_only_views_that_the_token_may_read(
    app: App, cluster: Cluster, home: Path, tmp_path: Path, http: Http
) -> None:
    for name in ("shop.db", "shop.lake", "shop.search"):
        (tmp_path / name).symlink_to(home / name)
    token = token_for(tmp_path, "some", "read:view:lite_*", "read:view:delta_things")
    with served(app, cluster, tmp_path, sql_processes=1) as client:
        client.token = token
        assert run_sql(client, "SELECT count(*) FROM lite_things JOIN delta_things USING (thing_id)")[
            "rows"
        ] == [[COUNT]]
        for sql in (
            "SELECT 1 FROM postgres_things",
            "SELECT 1 FROM lite_things, redis_things",
            "SELECT 1 FROM not_there",
            "SELECT (SELECT max(thing_id) FROM search_things)",
            "SELECT 1 FROM search('search_things', 'x')",
            "WITH a AS (SELECT * FROM redis_things) SELECT 1",
        ):
            refused = client.post("/v1/sql", {"sql": sql}).expect(403)
            assert refused["code"] == "HR-SERVE-SCOPE", sql
            assert client.post("/v1/sql/changes", {"sql": sql}).status == 403, sql
        # A CTE hides a view of the same name and reveals nothing about it.
        for name in ("redis_things", "not_there"):
            assert run_sql(client, f"WITH {name} AS (SELECT 1) SELECT 1 FROM {name}")["rows"] == [[1]]
        with results(client, "SELECT count(*) FROM lite_things") as response:
            assert next(response)["rows"] == [[COUNT]]
            TokenBook(tokens_path(tmp_path)).revoke("some")
            close_message = next(entry for entry in response if entry["type"] != "same")
            assert (close_message["type"], close_message["close"], close_message["retry_ms"]) == (
                "bye",
                4401,
                None,
            )
        assert Http(client.port).post("/v1/sql", {"sql": "SELECT 1"}).status == 401


def test_rows_match_their_position_while_views_move_and_are_rebuilt(http: Http, app: App, home: Path) -> None:
    topic = app.topics[0].name
    stop = threading.Event()
    ids = [f"m{number}" for number in range(20)]

    def write() -> None:
        for number in range(60):
            if not stop.wait(0.02):
                write_rows(
                    http, app, [{**sample_rows(1)[0], "thing_id": id_, "number": number} for id_ in ids]
                )

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    try:
        for turn in range(4):
            for view in app.views[:3]:
                if turn == 1:
                    with contextlib.closing(open_writer(view, "shop", home)) as store:
                        store.request_rebuild()
                result = run_sql(
                    http,
                    f"SELECT sum(a.number), sum(b.number), count(*) FROM {view.name} a JOIN {view.name} b"
                    " USING (thing_id) WHERE thing_id >= 'm' AND thing_id < 'n'",
                )
                seen.append((result["positions"][view.name]["offsets"], *result["rows"][0]))
    finally:
        stop.set()
        writer.join()
    records = _records(http, topic)
    for offsets, entry, other, count in seen:
        rows: dict[str, int] = {}
        for record in records:
            if record["offset"] < offsets[str(record["partition"])] and record["key"] in ids:
                rows[record["key"]] = record["value"]["number"]
        assert (entry or 0, other or 0, count) == (sum(rows.values()), sum(rows.values()), len(rows))
    assert len({json.dumps(offsets) for offsets, *_ in seen}) > 1
    deletions = [{"key": {"thing_id": id_}, "value": None} for id_ in ids]
    token = http.post(f"/v1/topics/{topic}/records", {"records": deletions}).expect(200)["token"]
    for store in STORES:
        run_sql(http, f"SELECT 1 FROM {store}_things", after=token, wait="30s")


def _records(http: Http, topic: str) -> list[Any]:
    records: list[Any] = []
    document = http.get(f"/v1/topics/{topic}/records", limit=1_000).expect(200)
    while True:
        records += document["records"]
        if document["at_end"]:
            return records
        document = http.get(document["next"]).expect(200)
