"""What is left on disk, or on a server, of kept parts; and stores that an older release wrote."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from faults.stores.delta import DeltaFixture
from faults.stores.port import StoreFixture
from faults.stores.redis import RedisFixture
from faults.stores.search import SearchFixture
from headrace.stores.catalog import CatalogFolder
from headrace.stores.delta import upkeep
from headrace.stores.delta.table import LakeTable
from headrace.stores.delta.writer import DeltaWriter
from headrace.stores.errors import QueryFailed, StaleWriter
from headrace.stores.query import All, Compare, Query
from headrace.stores.redis.reader import RedisReader
from headrace.stores.sqlite.writer import SqliteWriter
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.contract.test_kept_parts import reader_of


@contextlib.contextmanager
def driven(backend: StoreFixture) -> Iterator[StoreDriver]:
    with contextlib.closing(backend.open()) as store:
        yield StoreDriver(store)


# SQLite


def test_indexes_and_sql_views_of_users_follow_the_serving_part(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    def sql(statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def has_index(number: int) -> bool:
        (plan,) = sql(f"EXPLAIN QUERY PLAN SELECT key FROM sales WHERE number = {number}")
        return "COVERING INDEX" in plan[3]

    with contextlib.closing(SqliteWriter(path, "sales")) as store:
        driver = StoreDriver(store)
        driver.serve_generation(1, ("a", 1))
        sql('CREATE INDEX "by ""number" ON sales (number)')
        sql("CREATE UNIQUE INDEX [by_both] ON Sales(key, number)")
        sql("CREATE VIEW doubled AS SELECT number * 2 FROM sales")
        sql("CREATE TABLE log (text)")
        sql("CREATE TRIGGER logged AFTER INSERT ON sales BEGIN INSERT INTO log VALUES (new.key); END")
        for generation in (2, 3):
            driver.serve_generation(generation, ("a", generation))
            assert (has_index(generation), sql("SELECT * FROM doubled")) == (True, [(2 * generation,)])
        driver.at(2, 0).store.swap_back(driver.fence)
        assert (has_index(2), sql("SELECT * FROM doubled")) == (True, [(4,)])
        driver.apply(changes(SCHEMA, ("b", 2)))
        driver.at(3, 0).apply(changes(SCHEMA, ("b", 3)), Part.KEPT)
        driver.store.drop(Part.KEPT, driver.fence)
        assert has_index(2)
        names = "SELECT name FROM sqlite_master WHERE type IN ('table', 'index') AND name NOT LIKE 'sqlite_%'"
        assert len(sql(f"{names} AND name LIKE '%by%'")) == 2
        assert sql(f"{names} AND name LIKE '_headrace_kept%'") == []
        assert sql("SELECT * FROM log") == []


# Redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisFixture]:
    with contextlib.closing(RedisFixture(tmp_path)) as created:
        yield created


def test_a_dropped_kept_part_leaves_no_keys_in_redis(redis: RedisFixture) -> None:
    with driven(redis) as driver:
        driver.serve_generation(1, ("a", 1))
        driver.serve_generation(2, ("a", 2))
        assert sorted(redis.client.keys()) == [b"shop:sales", b"{shop:sales}:headrace", b"{shop:sales}:kept"]
        driver.at(1, 0).store.swap_back(driver.fence)
        driver.store.drop(Part.KEPT, driver.fence)
        assert sorted(redis.client.keys()) == [b"shop:sales", b"{shop:sales}:headrace"]
        fields = redis.client.hkeys("{shop:sales}:headrace")
        assert [name for name in fields if name.startswith((b"kept", b"building"))] == []


def test_a_scan_of_many_rows_in_redis_fails_if_another_part_serves_meanwhile(redis: RedisFixture) -> None:
    with driven(redis) as driver, contextlib.closing(RedisReader(redis.url, "shop:", "sales")) as reader:
        for generation in (1, 2):
            driver.serve_generation(generation, *((f"k{number}", generation) for number in range(12_000)))
        with reader.scan("sales", 60) as (_, rows):
            assert next(rows)[1] == 2
            driver.at(1, 0).store.swap_back(driver.fence)
            with pytest.raises(QueryFailed, match="replaced during the scan"):
                list(rows)
        with reader.scan("sales", 60) as (_, rows):
            assert {number for _, number in rows} == {1}


# Folders


def folders(backend: SearchFixture | DeltaFixture) -> set[str]:
    home = backend.path / "sales" if isinstance(backend, SearchFixture) else backend.path / "_headrace/sales"
    return {path.name for path in home.iterdir() if path.name != "catalog"}


@pytest.mark.parametrize(("fixture", "own"), [(SearchFixture, 1), (DeltaFixture, 0)])
def test_a_kept_part_has_one_folder_until_it_is_dropped(
    tmp_path: Path, fixture: type[SearchFixture] | type[DeltaFixture], own: int
) -> None:
    backend = fixture(tmp_path)
    with driven(backend) as driver:
        driver.serve_generation(1, ("a", 1))
        for generation in (2, 3):
            driver.serve_generation(generation, ("a", generation))
            assert len(folders(backend)) == own + 1
        for generation in (2, 3, 2):
            driver.at(generation, 0).store.swap_back(driver.fence)
            assert len(folders(backend)) == own + 1
    with driven(backend) as driver:
        assert driver.part(Part.KEPT) == (3, 0, [("a", 3)])
        assert driver.part(Part.SERVING) == (2, 0, [("a", 2)])
        driver.store.drop(Part.KEPT, driver.fence)
        # The claim named new folders, and the drop was the next change of the catalog.
        assert len(folders(backend)) == own
    assert backend.read() == (0, [("a", 2)])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["before the commit", "after the commit"])
@pytest.mark.parametrize("operation", ["swap", "swap back", "drop"])
def test_a_delta_writer_that_ends_between_two_steps_leaves_the_parts_from_before_or_after(
    tmp_path: Path, operation: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise Killed

    backend = DeltaFixture(tmp_path)
    parts = {number: (number, 0, [("a", number)]) for number in (1, 2, 3)}
    operations: dict[str, tuple[int, str, Callable[[StoreDriver], None], tuple[int, int | None]]] = {
        "swap": (3, "replace", lambda driver: driver.store.swap(driver.fence, keep=True), (3, 2)),
        "swap back": (1, "replace_files", lambda driver: driver.store.swap_back(driver.fence), (1, 2)),
        "drop": (
            2,
            "commit_without_rows",
            lambda driver: driver.store.drop(Part.KEPT, driver.fence),
            (2, None),
        ),
    }
    generation, commit, run, expected = operations[operation]
    with driven(backend) as driver:
        driver.serve_generation(1, ("a", 1))
        driver.serve_generation(2, ("a", 2))
        driver.generation = 3
        driver.begin()
        driver.apply(changes(SCHEMA, ("a", 3)), Part.BUILDING)
        if step == "after the commit":
            monkeypatch.setattr(DeltaWriter, "_change", end)
        elif operation == "swap back":
            monkeypatch.setattr(DeltaTable, "create_write_transaction", end_on_second_call(end))
        else:
            monkeypatch.setattr(LakeTable, commit, end)
        with pytest.raises(Killed):
            run(driver.at(generation, 0))
        monkeypatch.undo()
    serving, kept = (2, 1) if step == "before the commit" else expected
    with driven(backend) as driver:
        assert driver.part(Part.SERVING) == parts[serving]
        assert driver.part(Part.KEPT) == (parts[kept] if kept else None)
        driver.store.drop(Part.BUILDING, driver.fence)
        assert len(folders(backend)) == (1 if kept else 0)
    assert backend.read() == (0, [("a", serving)])


FOLDER_OPERATIONS: dict[str, tuple[int, type, str, Callable[[StoreDriver], None]]] = {
    "begin": (1, CatalogFolder, "_commit", StoreDriver.begin),
    "swap": (3, LakeTable, "replace", lambda driver: driver.store.swap(driver.fence, keep=True)),
    "swap back": (1, LakeTable, "replace_files", lambda driver: driver.store.swap_back(driver.fence)),
    "drop": (2, LakeTable, "commit_without_rows", lambda driver: driver.store.drop(Part.KEPT, driver.fence)),
}


@pytest.mark.parametrize("operation", FOLDER_OPERATIONS)
@pytest.mark.parametrize("fixture", [SearchFixture, DeltaFixture])
def test_a_writer_that_stalls_between_its_check_and_its_commit_changes_nothing_if_another_claims_the_view(
    tmp_path: Path,
    fixture: type[SearchFixture] | type[DeltaFixture],
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = fixture(tmp_path)
    generation, target, name, run = FOLDER_OPERATIONS[operation]
    if fixture is SearchFixture:
        target, name = CatalogFolder, "_commit"
    with driven(backend) as driver, contextlib.closing(backend.open()) as other:
        for number in (1, 2):
            driver.serve_generation(number, ("a", number))
        driver.generation = 3
        driver.begin()
        driver.apply(changes(SCHEMA, ("a", 3)), Part.BUILDING)
        original, successors = getattr(target, name), list[StoreDriver]()

        def stall(*arguments: Any) -> Any:
            monkeypatch.undo()
            successors.append(StoreDriver(other))
            successors[0].at(1, 0).apply(changes(SCHEMA, ("b", 1)), Part.KEPT)
            return original(*arguments)

        monkeypatch.setattr(target, name, stall)
        with pytest.raises(StaleWriter):
            run(driver.at(generation, 0))
        (successor,) = successors
        assert successor.part(Part.SERVING) == (2, 0, [("a", 2)])
        assert successor.part(Part.BUILDING) == (3, 0, [("a", 3)])
        assert successor.part(Part.KEPT) == (1, 1, [("a", 1), ("b", 1)])
        for part in (Part.BUILDING, Part.KEPT):
            successor.store.drop(part, successor.fence)
        assert len(folders(backend)) == (1 if fixture is SearchFixture else 0)
    assert backend.read() == (0, [("a", 2)])


def end_on_second_call(end: Callable[[], None]) -> Callable[..., None]:
    """Let the first call, which creates the copy of the serving table, succeed."""
    calls = list[object]()
    original = DeltaTable.create_write_transaction

    def call(*arguments: Any, **options: Any) -> None:
        calls.append(None)
        if len(calls) == 2:
            end()
        original(*arguments, **options)

    return call


def test_delta_files_that_serve_again_survive_the_upkeep_and_keep_their_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these settings, the upkeep removes the files of the previous version after every second commit."""
    for name, value in {"EVERY_COMMITS": 2, "UNUSED_BYTES": 0, "UNUSED_SIZE_FACTOR": 0}.items():
        monkeypatch.setattr(upkeep, name, value)
    monkeypatch.setattr(upkeep, "_ORPHANS_EVERY", 1)
    backend = DeltaFixture(tmp_path)
    with driven(backend) as driver:
        rows = {generation: {f"k{number}": generation for number in range(9)} for generation in (1, 2)}
        for generation in (1, 2):
            driver.serve_generation(generation, *rows[generation].items())
        batches, serving = {1: 0, 2: 0}, 2
        for number in range(12):
            for generation, part in ((serving, Part.SERVING), (3 - serving, Part.KEPT)):
                rows[generation][f"k{number % 9}"] = number
                change = changes(SCHEMA, (f"k{number % 9}", number))
                driver.at(generation, batches[generation]).apply(change, part)
                batches[generation] += 1
            if number % 3 == 2:
                serving = 3 - serving
                driver.at(serving, batches[serving]).store.swap_back(driver.fence)
        assert driver.part(Part.SERVING) == (serving, 12, sorted(rows[serving].items()))
        assert driver.part(Part.KEPT) == (3 - serving, 12, sorted(rows[3 - serving].items()))
        table = LakeTable(backend.path / "sales")
        assert not table.lacks_files()
        assert (table.is_ours, table.count()) == (True, 9)
        actions = table.delta.get_add_actions(flatten=True)
        numbers = rows[serving].values()
        assert (min(actions["min.number"].to_pylist()), max(actions["max.number"].to_pylist())) == (
            min(numbers),
            max(numbers),
        )
    with contextlib.closing(reader_of(backend)) as reader:
        query = Query(99, All((Compare("number", ">=", 8),)))
        result = reader.query("sales", lambda _: query, 60)
        assert result is not None
        assert sorted(result.rows) == sorted(row for row in rows[serving].items() if row[1] >= 8)


# Older releases


def forget_kept_parts(backend: StoreFixture) -> None:
    """Remove what a release without kept parts did not write."""
    if isinstance(backend, RedisFixture):
        assert backend.client.hdel("{shop:sales}:headrace", "serving.id") == 1
        return
    for path in backend.home.rglob("*.json"):
        text = path.read_text()
        if "catalog" in path.parts:
            path.write_text(
                json.dumps({name: value for name, value in json.loads(text).items() if name != "kept"})
            )
        elif path.parent.name == "_delta_log":
            assert r",\"kept\":\"\"" in text
            path.write_text(text.replace(r",\"kept\":\"\"", ""))


@pytest.mark.parametrize("fixture", [RedisFixture, SearchFixture, DeltaFixture])
def test_a_store_that_an_older_release_wrote_can_keep_its_serving_part(
    tmp_path: Path, fixture: type[StoreFixture]
) -> None:
    with contextlib.closing(fixture(tmp_path)) as backend:
        with driven(backend) as driver:
            driver.serve_generation(1, ("a", 1))
        forget_kept_parts(backend)
        with driven(backend) as driver:
            assert driver.part(Part.SERVING) == (1, 0, [("a", 1)])
            assert driver.part(Part.KEPT) is None
            driver.serve_generation(2, ("a", 2))
            driver.at(1, 0).store.swap_back(driver.fence)
            assert driver.part(Part.KEPT) == (2, 0, [("a", 2)])
        assert backend.read() == (0, [("a", 1)])


def test_a_delta_log_cannot_name_a_folder_elsewhere_as_the_kept_part(tmp_path: Path) -> None:
    backend = DeltaFixture(tmp_path)
    with driven(backend) as driver:
        driver.serve_generation(1, ("a", 1))
        table = LakeTable(backend.path / "sales")
        assert table.commit_state is not None
        table.commit_without_rows(msgspec.structs.replace(table.commit_state, kept="../../sales"))
        assert driver.part(Part.KEPT) is None
