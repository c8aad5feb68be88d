"""The Delta store: types, versions, files, faults and proofs."""

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

from faults.stores.delta import read_delta_table
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.model.kinds import Digits, Enum, Field, List, Scalar
from headrace.model.store import Delta
from headrace.stores.delta.layout import column_names
from headrace.stores.delta.reader import DeltaReader
from headrace.stores.delta.writer import DeltaWriter
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.rows import Row
from headrace.stores.writer import Changes, Fence, Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import position_of
from tests.views.folders import Shop, remove_folder

Fresh = Callable[[str], str]


def serve(store: DeltaWriter, view_schema: ViewSchema, *rows: Row) -> Fence:
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(view_schema, position_of(NO_BATCH), "", fence)
    changes = Changes(view_schema)
    for row in rows:
        changes.put(row)
    store.apply(Part.BUILDING, changes, position_of(NO_BATCH), position_of(0), fence)
    store.swap(fence)
    return fence


# Types and names


def test_columns_have_the_matching_types_of_delta(tmp_path: Path) -> None:
    kinds = {
        "text": Scalar("text"),
        "choice": Enum(("a", "b")),
        "int": Scalar("int"),
        "float": Scalar("float"),
        "bool": Scalar("bool"),
        "digits": Digits(20, 4),
        "huge": Digits(50, 4),
        "time": Scalar("time"),
        "date": Scalar("date"),
        "bytes": Scalar("bytes"),
        "list": List(Scalar("int")),
    }
    view_schema = ViewSchema(tuple(Field(name, kind, True) for name, kind in kinds.items()), ("text", "time"))
    first: Row = (
        *("a", "b", -(2**63), "NaN", True, "-1234567890123456.0001", "1.0000"),
        *("0001-01-01T00:00:00.000001Z", "0001-01-01", b"\0\xff", "[1,2]"),
    )
    second: Row = (
        *("a", None, None, float("-inf"), False, "0.0000", None),
        *("9999-12-31T23:59:59.999999Z", "9999-12-31", b"", None),
    )
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        serve(store, view_schema, first, second)
        assert list(store.rows()) == [first, second]
    table = DeltaTable(str(tmp_path / "sales"))
    types = {row.name: str(row.type) for row in table.schema().fields}
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
    (row,) = [row for row in table.to_pyarrow_table().to_pylist() if row["bool"]]
    assert row["digits"] == Decimal("-1234567890123456.0001")
    assert row["time"] == datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert row["date"] == date(1, 1, 1)


def test_column_names_that_engines_reject_get_distinct_replacements() -> None:
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


def test_replaced_names_are_read_back_as_the_names_of_the_view(tmp_path: Path) -> None:
    names = ["Key", "a b", "A_B", "select", "t", "s", 'say "it"']
    view_schema = ViewSchema(tuple(Field(name, Scalar("int"), True) for name in names), ("Key",))
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        fence = serve(store, view_schema, tuple(range(7)), tuple(range(1, 8)))
        changes = Changes(view_schema)
        changes.put(tuple(range(0, 70, 10)))
        changes.remove((1,))
        store.apply(Part.SERVING, changes, position_of(0), position_of(1), fence)
        assert list(store.rows()) == [tuple(range(0, 70, 10))]
    with contextlib.closing(DeltaReader(tmp_path)) as reader:
        with reader.scan("sales", 10) as (found, rows):
            assert (found, list(rows)) == (names, [tuple(range(0, 70, 10))])
        assert reader.count("sales") == 1


def test_a_decimal_key_with_any_digits_is_found(tmp_path: Path) -> None:
    """The Delta log stores the bounds of a file's numbers as floats. With wrong bounds a reader would skip the file."""
    view_schema = ViewSchema((Field("key", Digits(20, 4), False), Field("n", Scalar("int"), True)), ("key",))
    keys = ["-9999999999999999.9999", "1.5000", "9007199254740993.0001"]
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        for number in range(2):
            for key in keys:
                driver.apply(changes(view_schema, (key, number)))
        assert list(store.rows()) == [(key, 1) for key in sorted(keys)]
        driver.apply(changes(view_schema, deleted=tuple((key,) for key in keys)))
        assert list(store.rows()) == []


def test_nan_is_one_key_and_sorts_last(tmp_path: Path) -> None:
    view_schema = ViewSchema((Field("at", Scalar("float"), False), Field("n", Scalar("int"), True)), ("at",))
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        for number in range(2):
            driver.apply(changes(view_schema, ("NaN", number), (float("inf"), number), (-0.5, number)))
        assert list(store.rows()) == [(-0.5, 1), (float("inf"), 1), ("NaN", 1)]
        driver.apply(changes(view_schema, deleted=(("NaN",),)))
        assert list(store.rows()) == [(-0.5, 1), (float("inf"), 1)]


def test_hundreds_of_columns_and_a_text_of_megabytes_are_one_row(tmp_path: Path) -> None:
    view_schema = ViewSchema(
        tuple(Field(f"c{number}", Scalar("text"), True) for number in range(300)), ("c0",)
    )
    row: Row = ("key", "hay " * 1_000_000, *("",) * 298)
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        serve(store, view_schema, row)
        assert list(store.rows()) == [row]


# Followed and proven


def shop(cluster: Cluster, home: Path, name: str) -> Shop:
    def read_rows(view: str) -> dict[str, Any] | None:
        found = read_delta_table(home / "shop.lake" / view)
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    return Shop(cluster, home, name, Delta(), read_rows)


@pytest.mark.parametrize("folder", ["shop.lake", "shop.lake/VIEW"])
def test_a_folder_removed_while_no_records_arrive_is_rebuilt(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, folder: str
) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"), ("b", 2, "two"), ("a", None, ""))
    with created.following() as follower:
        created.expect({"b": ("b", 2, "two")})
        remove_folder(tmp_path / folder.replace("VIEW", created.view.name))
        until(lambda: follower.status.rebuilds == 2, "the rebuild", timeout_s=240)
        created.expect({"b": ("b", 2, "two")})


def test_a_restored_older_copy_catches_up(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"))
    with created.following():
        created.expect({"a": ("a", 1, "one")})
    shutil.copytree(tmp_path / "shop.lake", tmp_path / "kept")
    with created.following() as follower:
        created.write(("b", 2, "two"))
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        (tmp_path / "shop.lake").rename(tmp_path / "newer")
        (tmp_path / "kept").rename(tmp_path / "shop.lake")
        created.write(("c", 3, "three"))
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
        assert follower.status.rebuilds == 0


def test_verify_names_rows_changed_in_a_table(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"), ("b", 2, "two"), ("c", 3, "three"))
    with created.following():
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
    report = created.verify()
    assert (report.verdict, report.found_rows, report.behind) == ("proven", 3, 0), report.lines()
    lake, kept = tmp_path / "shop.lake", tmp_path / "kept"
    shutil.copytree(lake, kept)
    table = lake / created.view.name

    def restore() -> None:
        shutil.rmtree(lake)
        shutil.copytree(kept, lake)

    DeltaTable(str(table)).update({"note": "'2'"}, predicate="\"order\" = 'b'")
    (difference,) = created.verify().differences
    assert (difference.kind, difference.key, difference.columns) == ("different", {"order": "b"}, ["note"])
    restore()
    DeltaTable(str(table)).delete("\"order\" = 'b'")
    (difference,) = created.verify().differences
    assert (difference.kind, difference.key) == ("missing", {"order": "b"})
    restore()
    write_deltalake(str(table), pa.table({"order": ["z"], "amount": [1], "note": [""]}), mode="append")
    (difference,) = created.verify().differences
    assert (difference.kind, difference.key) == ("extra", {"order": "z"})
    restore()
    newest = max((table / "_delta_log").glob("*.json"))
    text = newest.read_text()
    assert '\\"offsets\\":{\\"0\\":3}' in text
    newest.write_text(text.replace('\\"offsets\\":{\\"0\\":3}', '\\"offsets\\":{\\"0\\":99}'))
    assert [finding.kind for finding in created.verify().findings] == ["position"]
