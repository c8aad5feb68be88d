"""The contract of store readers: every store returns the same rows as the oracle, in the same order, page by page."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from faults.stores.port import StoreFixture
from faults.stores.postgres import PostgresFixture
from faults.stores.redis import RedisFixture
from faults.stores.registry import KINDS, store_fixture
from faults.wait import until
from headrace.model.kinds import Digits, Enum, Field, List, Scalar
from headrace.serve.errors import ServeError
from headrace.serve.query.row_page import Cursor, RowPage
from headrace.stores.delta.reader import DeltaReader
from headrace.stores.errors import QueryRefused
from headrace.stores.position import ViewSchema
from headrace.stores.postgres.reader import PostgresReader
from headrace.stores.query import Query, order_by_key
from headrace.stores.reader import StoreReader
from headrace.stores.redis.reader import RedisReader
from headrace.stores.rows import Row
from headrace.stores.search.reader import SearchReader
from headrace.stores.sqlite.reader import SqliteReader
from tests.contract.store_driver import StoreDriver, changes

SCHEMA = ViewSchema(
    (
        Field("area", Scalar("text"), False),
        Field("number", Scalar("int"), False),
        Field("share", Scalar("float"), True),
        Field("is it", Scalar("bool"), True),
        Field("amount", Digits(), True),
        Field('raw"bytes', Scalar("bytes"), True),
        Field("at", Scalar("time"), True),
        Field("day", Scalar("date"), True),
        Field("kind", Enum(("old", "new")), True),
        Field("name%s", Scalar("text"), True),
        Field("tags", List(Scalar("text")), True),
    ),
    ("area", "number"),
)
NAMES = SCHEMA.names
TEXTS = (
    "",
    "a",
    "ab",
    "abc",
    "b",
    "A",
    "Ä",
    "é",
    "z%_",
    'q"\\',
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U0001f600",
    "a\U0010ffff",
)
POOLS: dict[str, tuple[Any, ...]] = {
    "area": TEXTS,
    "number": (0, 1, -1, 7, 2**63 - 1, -(2**63), 10**15),
    "share": (None, 0.0, -1.5, 2.5, 1e300, math.inf, -math.inf, "NaN"),
    "is it": (None, True, False),
    "amount": (None, "0.000000", "-1.500000", "9.000000", "10.000000", "123456789012.345678", "-0.000001"),
    'raw"bytes': (None, b"", b"\x00", b"\x00\x01", b"\xff"),
    "at": (None, "0001-01-01T00:00:00.000000Z", "2026-01-31T12:00:00.000001Z", "9999-12-31T23:59:59.999999Z"),
    "day": (None, "0001-01-01", "2026-01-31", "9999-12-31"),
    "kind": (None, "old", "new"),
    "name%s": (None, *TEXTS),
    "tags": (None, "[]", '["a","b"]'),
}


def _rows(seed: int = 4, count: int = 60) -> list[Row]:
    rng = random.Random(seed)
    keys = rng.sample(list(itertools.product(POOLS["area"], POOLS["number"])), count)
    return [(*key, *(rng.choice(POOLS[name]) for name in NAMES[2:])) for key in keys]


ROWS = _rows()


# The oracle


def _ordered(name: str, value: Any) -> Any:
    if name == "share":
        return (1, 0) if value == "NaN" else (0, value)
    return Decimal(value) if name == "amount" else value


def _value(row: Row, name: str) -> Any:
    return row[NAMES.index(name)]


Test = Callable[[Row], bool]


@dataclass(frozen=True)
class FilterCase:
    text: str
    holds: Test


def _quoted(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def _literal(name: str, value: Any) -> str:
    if name in ("number", "is it") or (name == "share" and math.isfinite(_number(value))):
        return json.dumps(value)
    if name == "amount":
        return str(value)
    if name == 'raw"bytes':
        return json.dumps(base64.b64encode(value).decode())
    if name == "share":
        return json.dumps("NaN" if value == "NaN" else "Infinity" if value > 0 else "-Infinity")
    return json.dumps(value)


def _number(value: Any) -> float:
    return math.nan if value == "NaN" else float(value)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _compare(name: str, sign: str, value: Any) -> FilterCase:
    def holds(row: Row) -> bool:
        found = _value(row, name)
        if sign in ("=", "!="):
            same = found is not None and _ordered(name, found) == _ordered(name, value)
            return same == (sign == "=")
        return found is not None and _COMPARE[sign](_ordered(name, found), _ordered(name, value))

    return FilterCase(f"{_quoted(name)} {sign} {_literal(name, value)}", holds)


def _null(name: str, sign: str) -> FilterCase:
    return FilterCase(
        f"{_quoted(name)} {sign} null", lambda row: (_value(row, name) is None) == (sign == "=")
    )


def _starts(name: str, text: str) -> FilterCase:
    return FilterCase(
        f"{_quoted(name)} startswith {json.dumps(text)}",
        lambda row: _value(row, name) is not None and _value(row, name).startswith(text),
    )


def _one_of(name: str, values: list[Any]) -> FilterCase:
    parts = [_compare(name, "=", value) for value in values]
    listed = ", ".join(_literal(name, value) for value in values)
    return FilterCase(f"{_quoted(name)} in ({listed})", lambda row: any(part.holds(row) for part in parts))


COMPARED = [name for name in NAMES if name != "tags"]
_names = st.sampled_from(COMPARED)


def _values(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([item for item in POOLS[name] if item is not None])


_atoms = st.one_of(
    _names.flatmap(
        lambda name: st.builds(
            _compare, st.just(name), st.sampled_from(["=", "!=", *_COMPARE]), _values(name)
        )
    ),
    st.builds(_null, st.sampled_from(NAMES), st.sampled_from(["=", "!="])),
    st.builds(_starts, st.sampled_from(["area", "name%s"]), st.sampled_from(TEXTS)),
    _names.flatmap(
        lambda name: st.builds(_one_of, st.just(name), st.lists(_values(name), min_size=1, max_size=3))
    ),
)
FILTERS = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        inner.map(lambda item: FilterCase(f"not ({item.text})", lambda row: not item.holds(row))),
        st.tuples(inner, inner).map(
            lambda two: FilterCase(
                f"({two[0].text}) and ({two[1].text})", lambda row: two[0].holds(row) and two[1].holds(row)
            )
        ),
        st.tuples(inner, inner).map(
            lambda two: FilterCase(
                f"({two[0].text}) OR ({two[1].text})", lambda row: two[0].holds(row) or two[1].holds(row)
            )
        ),
    ),
    max_leaves=5,
)
SORTS = st.lists(st.tuples(_names, st.booleans()), max_size=3, unique_by=lambda item: item[0])


def _sorted(rows: list[Row], sort: list[tuple[str, bool]]) -> list[Row]:
    order = [*sort, *((name, False) for name in SCHEMA.key if name not in [item for item, _ in sort])]
    found = list(rows)
    for name, descending in reversed(order):
        found.sort(
            key=lambda row: (
                _value(row, name) is not None,
                _ordered(name, _value(row, name)) if _value(row, name) is not None else 0,
            ),
            reverse=descending,
        )
    return found


# The stores


def _reader(backend: StoreFixture, store: str) -> StoreReader:
    if isinstance(backend, PostgresFixture):
        return PostgresReader(backend.url, backend.schema)
    if isinstance(backend, RedisFixture):
        return RedisReader(backend.url, "shop:", "sales")
    return {"sqlite": SqliteReader, "search": SearchReader, "delta": DeltaReader}[store](backend.path)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Filled:
    name: str
    reader: StoreReader
    driver: StoreDriver
    backend: StoreFixture


@pytest.fixture(scope="module", params=KINDS)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    backend = store_fixture(request.param)(tmp_path_factory.mktemp(request.param))
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.serve(SCHEMA)
        driver.apply(changes(SCHEMA, *ROWS))
        with contextlib.closing(_reader(backend, request.param)) as reader:
            yield Filled(request.param, reader, driver, backend)
    backend.close()


def pages(reader: StoreReader, page: RowPage) -> list[Row]:
    """Return all rows by following the cursor of each page."""
    found: list[Row] = []
    for _ in range(len(ROWS) + 2):
        result = reader.query("sales", page.query, 30)
        assert result is not None
        assert len(result.rows) <= page.limit
        found += result.rows
        document = page.document("/rows", result, 10**9)
        assert document.moved is False
        if not document.next:
            return found
        assert result.more
        cursor = document.next.partition("cursor=")[2].partition("&")[0]
        page = RowPage(Cursor.parse(cursor, "sales"), page.limit, True)
    raise AssertionError("pages without end")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=st.none() | FILTERS, sort=SORTS, limit=st.integers(1, 70))
@example(case=None, sort=[("share", True), ("amount", False)], limit=7)
def test_all_pages_together_equal_the_rows_of_the_oracle_in_order(
    filled: Filled, case: FilterCase | None, sort: list[tuple[str, bool]], limit: int
) -> None:
    parameters = {
        **({"filter": case.text} if case else {}),
        **({"sort": ",".join("-" * descending + name for name, descending in sort)} if sort else {}),
    }
    found = pages(filled.reader, RowPage.first("sales", parameters, limit, same=False))
    expected = _sorted([row for row in ROWS if case is None or case.holds(row)], sort)
    assert found == expected, parameters


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    begin=st.none() | st.tuples(st.sampled_from(TEXTS), st.none() | st.sampled_from(POOLS["number"])),
    end=st.none() | st.tuples(st.sampled_from(TEXTS), st.none() | st.sampled_from(POOLS["number"])),
    limit=st.integers(1, 20),
)
def test_a_key_range_returns_the_rows_between_its_bounds(
    filled: Filled, begin: Any, end: Any, limit: int
) -> None:
    def parameter(bound: Any) -> str:
        fields = {"area": bound[0]} if bound[1] is None else {"number": bound[1], "area": bound[0]}
        return json.dumps(fields)

    def key(row: Row, bound: Any) -> Any:
        return row[:1] if bound[1] is None else row[:2]

    parameters = {name: parameter(item) for name, item in (("from", begin), ("to", end)) if item is not None}
    expected = [
        row
        for row in _sorted(ROWS, [])
        if (begin is None or key(row, begin) >= tuple(item for item in begin if item is not None))
        and (end is None or key(row, end) < tuple(item for item in end if item is not None))
    ]
    assert pages(filled.reader, RowPage.first("sales", parameters, limit, same=False)) == expected


def test_a_row_is_found_by_its_key(filled: Filled) -> None:
    for row in ROWS:
        result = filled.reader.query("sales", lambda schema, row=row: Query(1, key=row[:2]), 30)  # type: ignore[misc]
        assert result is not None
        assert result.rows == [row]
        assert result.state.position == filled.driver.position
    result = filled.reader.query("sales", lambda schema: Query(1, key=("not", 1)), 30)
    assert result is not None
    assert result.rows == []


def test_a_prefix_of_a_composite_key_matches_its_first_fields(filled: Filled) -> None:
    for text in TEXTS:
        page = RowPage.first("sales", {"prefix": json.dumps({"area": text})}, 3, same=True)
        assert pages(filled.reader, page) == _sorted([row for row in ROWS if row[0] == text], [])


def test_only_a_full_text_index_accepts_words(filled: Filled) -> None:
    page = RowPage.first("sales", {"match": "abc z"}, 2, same=True)
    if filled.name != "search":
        with pytest.raises(QueryRefused, match="no full-text index"):
            filled.reader.query("sales", page.query, 30)
        return
    found = pages(filled.reader, page)
    words = {"abc", "z"}
    expected = [
        row
        for row in ROWS
        if words & {item.lower().strip("%_") for item in (row[0], row[8], row[9]) if isinstance(item, str)}
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    with pytest.raises(QueryRefused, match="cannot parse the query"):
        filled.reader.query("sales", RowPage.first("sales", {"match": '"'}, 2, same=True).query, 30)


def test_a_missing_view_returns_none_and_an_error_of_the_query_builder_is_raised(filled: Filled) -> None:
    def refuse(_: ViewSchema) -> Query:
        raise ServeError("no")

    with pytest.raises(ServeError, match="no"):
        filled.reader.query("sales", refuse, 30)
    if not isinstance(filled.backend, RedisFixture):
        assert filled.reader.state("nothing") is None
        assert filled.reader.query("nothing", refuse, 30) is None
    result = filled.reader.query("sales", lambda schema: Query(5, order=order_by_key(schema)), 30)
    assert result is not None
    assert len(result.rows) == 5


def test_rows_and_position_are_consistent_while_the_view_changes(filled: Filled) -> None:
    """Each batch writes its number into every row, so a consistent read has only one number."""
    rows = [(f"m{number}", number, *(None,) * 9) for number in range(30)]
    page = RowPage.first("sales", {"filter": 'area startswith "m"'}, 100, same=False)
    results: list[tuple[int, list[Row]]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            result = filled.reader.query("sales", page.query, 30)
            assert result is not None
            results.append((result.state.position.batch, result.rows))

    first = filled.driver.position.batch + 1
    filled.driver.apply(changes(SCHEMA, *((*row[:2], float(first), *row[3:]) for row in rows)))
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(first + 1, first + (6 if filled.name in ("delta", "search") else 40)):
        filled.driver.apply(changes(SCHEMA, *((*row[:2], float(number), *row[3:]) for row in rows)))
        before = len(results)
        until(lambda: len(results) > before or not reader.is_alive(), "a read")  # noqa: B023
    stop.set()
    reader.join()
    # The tests below write their own rows.
    filled.driver.apply(changes(SCHEMA, deleted=tuple(row[:2] for row in rows)))
    assert len({batch for batch, _ in results}) > 3
    for batch, found in results:
        assert [row[2] for row in found] == [float(batch)] * 30
