"""What every store answers to the same questions: the rows that an oracle finds, in its order, page by page."""

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

from headrace.model.kinds import Choice, Digits, Field, Many, Plain
from headrace.serve.cursor import Cursor
from headrace.serve.errors import ServeError
from headrace.serve.row_page import RowPage
from headrace.views.asking import Asker
from headrace.views.delta.asking import DeltaAsker
from headrace.views.errors import QuestionRefused
from headrace.views.position import Shape
from headrace.views.postgres.asking import PostgresAsker
from headrace.views.question import Question, by_key
from headrace.views.redis.asking import RedisAsker
from headrace.views.rows import Row
from headrace.views.search.asking import SearchAsker
from headrace.views.sqlite_asking import SqliteAsker
from tests.contract.see import See
from tests.contract.see_postgres import SeePostgres
from tests.contract.see_redis import SeeRedis
from tests.contract.sees import SEES
from tests.contract.store_hand import Hand, changes
from tests.support.waiting import until

SHAPE = Shape(
    (
        Field("area", Plain("text"), False),
        Field("number", Plain("int"), False),
        Field("share", Plain("float"), True),
        Field("is it", Plain("bool"), True),
        Field("amount", Digits(), True),
        Field('raw"bytes', Plain("bytes"), True),
        Field("at", Plain("time"), True),
        Field("day", Plain("date"), True),
        Field("kind", Choice(("old", "new")), True),
        Field("name%s", Plain("text"), True),
        Field("tags", Many(Plain("text")), True),
    ),
    ("area", "number"),
)
NAMES = SHAPE.names
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


def _at(row: Row, name: str) -> Any:
    return row[NAMES.index(name)]


Test = Callable[[Row], bool]


@dataclass(frozen=True)
class Said:
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


def _compare(name: str, sign: str, value: Any) -> Said:
    def holds(row: Row) -> bool:
        found = _at(row, name)
        if sign in ("=", "!="):
            same = found is not None and _ordered(name, found) == _ordered(name, value)
            return same == (sign == "=")
        return found is not None and _COMPARE[sign](_ordered(name, found), _ordered(name, value))

    return Said(f"{_quoted(name)} {sign} {_literal(name, value)}", holds)


def _null(name: str, sign: str) -> Said:
    return Said(f"{_quoted(name)} {sign} null", lambda row: (_at(row, name) is None) == (sign == "="))


def _starts(name: str, text: str) -> Said:
    return Said(
        f"{_quoted(name)} startswith {json.dumps(text)}",
        lambda row: _at(row, name) is not None and _at(row, name).startswith(text),
    )


def _among(name: str, values: list[Any]) -> Said:
    parts = [_compare(name, "=", one) for one in values]
    listed = ", ".join(_literal(name, one) for one in values)
    return Said(f"{_quoted(name)} in ({listed})", lambda row: any(one.holds(row) for one in parts))


COMPARED = [name for name in NAMES if name != "tags"]
_names = st.sampled_from(COMPARED)


def _values(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([one for one in POOLS[name] if one is not None])


_atoms = st.one_of(
    _names.flatmap(
        lambda name: st.builds(
            _compare, st.just(name), st.sampled_from(["=", "!=", *_COMPARE]), _values(name)
        )
    ),
    st.builds(_null, st.sampled_from(NAMES), st.sampled_from(["=", "!="])),
    st.builds(_starts, st.sampled_from(["area", "name%s"]), st.sampled_from(TEXTS)),
    _names.flatmap(
        lambda name: st.builds(_among, st.just(name), st.lists(_values(name), min_size=1, max_size=3))
    ),
)
FILTERS = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        inner.map(lambda one: Said(f"not ({one.text})", lambda row: not one.holds(row))),
        st.tuples(inner, inner).map(
            lambda two: Said(
                f"({two[0].text}) and ({two[1].text})", lambda row: two[0].holds(row) and two[1].holds(row)
            )
        ),
        st.tuples(inner, inner).map(
            lambda two: Said(
                f"({two[0].text}) OR ({two[1].text})", lambda row: two[0].holds(row) or two[1].holds(row)
            )
        ),
    ),
    max_leaves=5,
)
SORTS = st.lists(st.tuples(_names, st.booleans()), max_size=3, unique_by=lambda one: one[0])


def _sorted(rows: list[Row], sort: list[tuple[str, bool]]) -> list[Row]:
    order = [*sort, *((name, False) for name in SHAPE.key if name not in [one for one, _ in sort])]
    found = list(rows)
    for name, descending in reversed(order):
        found.sort(
            key=lambda row: (
                _at(row, name) is not None,
                _ordered(name, _at(row, name)) if _at(row, name) is not None else 0,
            ),
            reverse=descending,
        )
    return found


# The stores


def _asker(see: See, store: str) -> Asker:
    if isinstance(see, SeePostgres):
        return PostgresAsker(see.url, see.schema)
    if isinstance(see, SeeRedis):
        return RedisAsker(see.url, "shop:", "sales")
    return {"sqlite": SqliteAsker, "search": SearchAsker, "delta": DeltaAsker}[store](see.path)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Filled:
    name: str
    asker: Asker
    hand: Hand
    see: See


@pytest.fixture(scope="module", params=list(SEES))
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    see = SEES[request.param](tmp_path_factory.mktemp(request.param))
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.serve(SHAPE)
        hand.apply(changes(SHAPE, *ROWS))
        with contextlib.closing(_asker(see, request.param)) as asker:
            yield Filled(request.param, asker, hand, see)
    see.close()


def pages(asker: Asker, page: RowPage) -> list[Row]:
    """All rows, by following what each page says comes next."""
    found: list[Row] = []
    for _ in range(len(ROWS) + 2):
        asked = asker.ask("sales", page.question, 30)
        assert asked is not None
        assert len(asked.rows) <= page.limit
        found += asked.rows
        told = page.answer("/rows", asked, 10**9)
        assert told["moved"] is False
        if "next" not in told:
            return found
        assert asked.more
        cursor = told["next"].partition("cursor=")[2].partition("&")[0]
        page = RowPage(Cursor.told(cursor, "sales"), page.limit, True)
    raise AssertionError("pages without end")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.none() | FILTERS, sort=SORTS, limit=st.integers(1, 70))
@example(said=None, sort=[("share", True), ("amount", False)], limit=7)
def test_pages_put_together_are_the_rows_that_an_oracle_finds_in_its_order(
    filled: Filled, said: Said | None, sort: list[tuple[str, bool]], limit: int
) -> None:
    asked = {
        **({"filter": said.text} if said else {}),
        **({"sort": ",".join("-" * descending + name for name, descending in sort)} if sort else {}),
    }
    found = pages(filled.asker, RowPage.first("sales", asked, limit, same=False))
    wanted = _sorted([row for row in ROWS if said is None or said.holds(row)], sort)
    assert found == wanted, asked


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    begin=st.none() | st.tuples(st.sampled_from(TEXTS), st.none() | st.sampled_from(POOLS["number"])),
    end=st.none() | st.tuples(st.sampled_from(TEXTS), st.none() | st.sampled_from(POOLS["number"])),
    limit=st.integers(1, 20),
)
def test_a_range_of_keys_is_what_lies_between(filled: Filled, begin: Any, end: Any, limit: int) -> None:
    def told(bound: Any) -> str:
        fields = {"area": bound[0]} if bound[1] is None else {"number": bound[1], "area": bound[0]}
        return json.dumps(fields)

    def key(row: Row, bound: Any) -> Any:
        return row[:1] if bound[1] is None else row[:2]

    asked = {name: told(one) for name, one in (("from", begin), ("to", end)) if one is not None}
    wanted = [
        row
        for row in _sorted(ROWS, [])
        if (begin is None or key(row, begin) >= tuple(one for one in begin if one is not None))
        and (end is None or key(row, end) < tuple(one for one in end if one is not None))
    ]
    assert pages(filled.asker, RowPage.first("sales", asked, limit, same=False)) == wanted


def test_a_row_is_found_by_its_key_and_another_is_not(filled: Filled) -> None:
    for row in ROWS:
        asked = filled.asker.ask("sales", lambda shape, row=row: Question(1, key=row[:2]), 30)  # type: ignore[misc]
        assert asked is not None
        assert asked.rows == [row]
        assert asked.standing.position == filled.hand.position
    asked = filled.asker.ask("sales", lambda shape: Question(1, key=("not", 1)), 30)
    assert asked is not None
    assert asked.rows == []


def test_a_prefix_of_a_key_of_several_fields_is_the_first_of_them(filled: Filled) -> None:
    for text in TEXTS:
        page = RowPage.first("sales", {"prefix": json.dumps({"area": text})}, 3, same=True)
        assert pages(filled.asker, page) == _sorted([row for row in ROWS if row[0] == text], [])


def test_words_are_for_an_index_only(filled: Filled) -> None:
    page = RowPage.first("sales", {"match": "abc z"}, 2, same=True)
    if filled.name != "search":
        with pytest.raises(QuestionRefused, match="no full-text index"):
            filled.asker.ask("sales", page.question, 30)
        return
    found = pages(filled.asker, page)
    words = {"abc", "z"}
    wanted = [
        row
        for row in ROWS
        if words & {one.lower().strip("%_") for one in (row[0], row[8], row[9]) if isinstance(one, str)}
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    with pytest.raises(QuestionRefused, match="does not understand"):
        filled.asker.ask("sales", RowPage.first("sales", {"match": '"'}, 2, same=True).question, 30)


def test_a_view_that_is_not_there_is_none_and_a_question_s_own_error_ends_the_asking(filled: Filled) -> None:
    def refuse(_: Shape) -> Question:
        raise ServeError("no")

    with pytest.raises(ServeError, match="no"):
        filled.asker.ask("sales", refuse, 30)
    if not isinstance(filled.see, SeeRedis):
        assert filled.asker.standing("nothing") is None
        assert filled.asker.ask("nothing", refuse, 30) is None
    asked = filled.asker.ask("sales", lambda shape: Question(5, order=by_key(shape)), 30)
    assert asked is not None
    assert len(asked.rows) == 5


def test_rows_and_position_are_of_one_moment_while_the_view_changes(filled: Filled) -> None:
    """Each batch gives every row the number of the batch; what is read is never of two."""
    rows = [(f"m{number}", number, *(None,) * 9) for number in range(30)]
    page = RowPage.first("sales", {"filter": 'area startswith "m"'}, 100, same=False)
    seen: list[tuple[int, list[Row]]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            asked = filled.asker.ask("sales", page.question, 30)
            assert asked is not None
            seen.append((asked.standing.position.batch, asked.rows))

    first = filled.hand.position.batch + 1
    filled.hand.apply(changes(SHAPE, *((*one[:2], float(first), *one[3:]) for one in rows)))
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(first + 1, first + (6 if filled.name in ("delta", "search") else 40)):
        filled.hand.apply(changes(SHAPE, *((*one[:2], float(number), *one[3:]) for one in rows)))
        before = len(seen)
        until(lambda: len(seen) > before or not reader.is_alive(), "a look")  # noqa: B023
    stop.set()
    reader.join()
    # The other tests have rows of their own.
    filled.hand.apply(changes(SHAPE, gone=tuple(one[:2] for one in rows)))
    assert len({batch for batch, _ in seen}) > 3
    for batch, found in seen:
        assert [row[2] for row in found] == [float(batch)] * 30
