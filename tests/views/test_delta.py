"""What is a Delta table's own about its store: types, versions, files, troubles, and proofs of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.client.cluster import Cluster
from headrace.model.kinds import Choice, Digits, Field, Many, Plain
from headrace.model.store import Delta
from headrace.views.changes import Changes
from headrace.views.delta.columns import column_names
from headrace.views.delta.reading import DeltaReader
from headrace.views.delta.store import DeltaStore
from headrace.views.position import NO_BATCH, Shape
from headrace.views.rows import Row
from headrace.views.store import Fence, Part
from tests.contract.see_delta import look_at_delta
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import position_of
from tests.support.waiting import until
from tests.views.folders import Shop, taken_away

Fresh = Callable[[str], str]


def serve(store: DeltaStore, shape: Shape, *rows: Row) -> Fence:
    fence = Fence(store.take("a test", 1), 1)
    store.begin(shape, position_of(NO_BATCH), "", fence)
    changes = Changes(shape)
    for row in rows:
        changes.put(row)
    store.apply(Part.BUILDING, changes, position_of(NO_BATCH), position_of(0), fence)
    store.swap(fence)
    return fence


# Types and names


def test_columns_have_the_types_that_a_lake_has_for_them(tmp_path: Path) -> None:
    kinds = {
        "text": Plain("text"),
        "choice": Choice(("a", "b")),
        "int": Plain("int"),
        "float": Plain("float"),
        "bool": Plain("bool"),
        "digits": Digits(20, 4),
        "huge": Digits(50, 4),
        "time": Plain("time"),
        "date": Plain("date"),
        "bytes": Plain("bytes"),
        "list": Many(Plain("int")),
    }
    shape = Shape(tuple(Field(name, kind, True) for name, kind in kinds.items()), ("text", "time"))
    first: Row = (
        *("a", "b", -(2**63), "NaN", True, "-1234567890123456.0001", "1.0000"),
        *("0001-01-01T00:00:00.000001Z", "0001-01-01", b"\0\xff", "[1,2]"),
    )
    second: Row = (
        *("a", None, None, float("-inf"), False, "0.0000", None),
        *("9999-12-31T23:59:59.999999Z", "9999-12-31", b"", None),
    )
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        serve(store, shape, first, second)
        assert list(store.rows()) == [first, second]
    table = DeltaTable(str(tmp_path / "sales"))
    types = {one.name: str(one.type) for one in table.schema().fields}
    assert {
        name: text.removeprefix('PrimitiveType("').removesuffix('")') for name, text in types.items()
    } == {
        "text": "string",
        "choice": "string",
        "int": "long",
        "float": "double",
        "bool": "boolean",
        "digits": "decimal(20,4)",
        "huge": "string",
        "time": "timestamp",
        "date": "date",
        "bytes": "binary",
        "list": "string",
    }
    (row,) = [one for one in table.to_pyarrow_table().to_pylist() if one["bool"]]
    assert row["digits"] == Decimal("-1234567890123456.0001")
    assert row["time"] == datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert row["date"] == date(1, 1, 1)


def test_names_that_engines_refuse_are_written_otherwise_and_stay_apart() -> None:
    assert column_names(["a b", "a_b", "A_B", "x;y", "", "naïve", "select", "_headrace_gone"]) == [
        "a_b",
        "a_b_2",
        "A_B_3",
        "x_y",
        "column",
        "naïve",
        "select",
        "_headrace_gone_2",
    ]


def test_odd_names_are_read_back_as_the_view_s(tmp_path: Path) -> None:
    names = ["Key", "a b", "A_B", "select", "t", "s", 'say "it"']
    shape = Shape(tuple(Field(name, Plain("int"), True) for name in names), ("Key",))
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        fence = serve(store, shape, tuple(range(7)), tuple(range(1, 8)))
        changes = Changes(shape)
        changes.put(tuple(range(0, 70, 10)))
        changes.remove((1,))
        store.apply(Part.SERVING, changes, position_of(0), position_of(1), fence)
        assert list(store.rows()) == [tuple(range(0, 70, 10))]
    with contextlib.closing(DeltaReader(tmp_path)) as reader:
        with reader.reading("sales", 10) as (found, rows):
            assert (found, list(rows)) == (names, [tuple(range(0, 70, 10))])
        assert reader.count("sales") == 1


def test_an_exact_number_as_key_is_found_again_whatever_its_digits(tmp_path: Path) -> None:
    """The log has the bounds of a file's numbers as floats, which would lead past it."""
    shape = Shape((Field("key", Digits(20, 4), False), Field("n", Plain("int"), True)), ("key",))
    keys = ["-9999999999999999.9999", "1.5000", "9007199254740993.0001"]
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        hand = Hand(store)
        hand.serve(shape)
        for number in range(2):
            for key in keys:
                hand.apply(changes(shape, (key, number)))
        assert list(store.rows()) == [(key, 1) for key in sorted(keys)]
        hand.apply(changes(shape, gone=tuple((key,) for key in keys)))
        assert list(store.rows()) == []


def test_no_number_is_one_key_and_the_last(tmp_path: Path) -> None:
    shape = Shape((Field("at", Plain("float"), False), Field("n", Plain("int"), True)), ("at",))
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        hand = Hand(store)
        hand.serve(shape)
        for number in range(2):
            hand.apply(changes(shape, ("NaN", number), (float("inf"), number), (-0.5, number)))
        assert list(store.rows()) == [(-0.5, 1), (float("inf"), 1), ("NaN", 1)]
        hand.apply(changes(shape, gone=(("NaN",),)))
        assert list(store.rows()) == [(-0.5, 1), (float("inf"), 1)]


def test_hundreds_of_columns_and_a_text_of_megabytes_are_one_row(tmp_path: Path) -> None:
    shape = Shape(tuple(Field(f"c{number}", Plain("text"), True) for number in range(300)), ("c0",))
    row: Row = ("key", "hay " * 1_000_000, *("",) * 298)
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        serve(store, shape, row)
        assert list(store.rows()) == [row]


# Followed and proven


def shop(cluster: Cluster, home: Path, name: str) -> Shop:
    def look(view: str) -> dict[str, Any] | None:
        found = look_at_delta(home / "shop.lake" / view)
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    return Shop(cluster, home, name, Delta(), look)


@pytest.mark.parametrize("what", ["shop.lake", "shop.lake/VIEW"])
def test_a_folder_that_goes_while_nothing_comes_is_noticed_and_built_again(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, what: str
) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"), ("b", 2, "two"), ("a", None, ""))
    with made.following() as follower:
        made.expect({"b": ("b", 2, "two")})
        taken_away(tmp_path / what.replace("VIEW", made.view.name))
        until(lambda: follower.status.rebuilds == 2, "the rebuild", timeout_s=240)
        made.expect({"b": ("b", 2, "two")})


def test_an_older_copy_that_is_put_back_catches_up(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"))
    with made.following():
        made.expect({"a": ("a", 1, "one")})
    shutil.copytree(tmp_path / "shop.lake", tmp_path / "kept")
    with made.following() as follower:
        made.write(("b", 2, "two"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        (tmp_path / "shop.lake").rename(tmp_path / "newer")
        (tmp_path / "kept").rename(tmp_path / "shop.lake")
        made.write(("c", 3, "three"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
        assert follower.status.rebuilds == 0


def test_what_is_planted_in_a_table_is_named(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"), ("b", 2, "two"), ("c", 3, "three"))
    with made.following():
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
    report = made.verify()
    assert (report.verdict, report.found_rows, report.behind) == ("proven", 3, 0), report.lines()
    lake, kept = tmp_path / "shop.lake", tmp_path / "kept"
    shutil.copytree(lake, kept)
    table = lake / made.view.name

    def again() -> None:
        shutil.rmtree(lake)
        shutil.copytree(kept, lake)

    DeltaTable(str(table)).update({"note": "'2'"}, predicate="\"order\" = 'b'")
    (wrong,) = made.verify().differences
    assert (wrong.kind, wrong.key, wrong.columns) == ("different", {"order": "b"}, ["note"])
    again()
    DeltaTable(str(table)).delete("\"order\" = 'b'")
    (wrong,) = made.verify().differences
    assert (wrong.kind, wrong.key) == ("missing", {"order": "b"})
    again()
    write_deltalake(str(table), pa.table({"order": ["z"], "amount": [1], "note": [""]}), mode="append")
    (wrong,) = made.verify().differences
    assert (wrong.kind, wrong.key) == ("extra", {"order": "z"})
    again()
    newest = max((table / "_delta_log").glob("*.json"))
    text = newest.read_text()
    assert '\\"offsets\\":{\\"0\\":3}' in text
    newest.write_text(text.replace('\\"offsets\\":{\\"0\\":3}', '\\"offsets\\":{\\"0\\":99}'))
    assert [one.kind for one in made.verify().findings] == ["position"]
