"""The contract of the kept part of a view: a former serving part, which can serve again. Every store must pass it."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.stores.port import StoreFixture
from faults.wait import until
from headrace.model.declarations import Topic, View
from headrace.model.kinds import Field, Scalar
from headrace.ops.verify.snapshot import read_snapshot
from headrace.stores.arrow import TableScan
from headrace.stores.errors import NoKeptPart
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.query import Query
from headrace.stores.reader import StoreReader
from headrace.stores.registry import location_of, open_arrow_reader, open_reader
from headrace.stores.rows import Row
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA

WIDER = ViewSchema((*SCHEMA.fields, Field("label", Scalar("text"), True)), ("key",))


def view_of(backend: StoreFixture) -> View:
    return View("sales", Topic("sales", None, ("key",)), ("key",), backend.declared())


def reader_of(backend: StoreFixture) -> StoreReader:
    reader = open_reader(view_of(backend), "shop", backend.home)
    assert reader is not None
    return reader


def test_a_kept_part_is_written_beside_the_serving_part_and_serves_again(
    backend: StoreFixture, driver: StoreDriver, tmp_path: Path
) -> None:
    driver.serve_generation(1, ("a", 1), ("b", 1))
    row: Row = ("a", 2, "new")
    driver.serve_generation(2, row, schema=WIDER)
    driver.at(1, 0).apply(changes(SCHEMA, ("c", 1), deleted=(("b",),)), Part.KEPT)
    assert driver.part(Part.KEPT) == (1, 1, [("a", 1), ("c", 1)])
    assert backend.read() == (0, [row])
    driver.generation = 3
    driver.begin()
    driver.apply(changes(SCHEMA, ("new", 3)), Part.BUILDING)
    driver.at(1, 1).store.swap_back(driver.fence)
    assert backend.read() == (1, [("a", 1), ("c", 1)])
    assert driver.part(Part.KEPT) == (2, 0, [row])
    assert driver.part(Part.BUILDING) == (3, 0, [("new", 3)])
    driver.apply(changes(SCHEMA, ("c", 2)))
    assert serving_generations(backend, tmp_path) == [1, 1, 1]
    driver.at(2, 0).apply(changes(WIDER, ("b", *row[1:])), Part.KEPT)
    driver.store.swap_back(driver.fence)
    assert backend.read() == (1, [row, ("b", *row[1:])])
    assert serving_generations(backend, tmp_path) == [2, 2, 2]
    assert driver.part(Part.KEPT) == (1, 2, [("a", 1), ("c", 2)])


def serving_generations(backend: StoreFixture, home: Path) -> list[int]:
    """Return the serving generation as each of the readers sees it: two ways of the server, and verify."""
    with contextlib.closing(reader_of(backend)) as reader:
        state = reader.state("sales")
        parts = {stored.part: stored.state.position.generation for stored in reader.parts("sales")}
    folder = Path(tempfile.mkdtemp(dir=home))
    verified, scratch = read_snapshot(folder, view_of(backend), "shop", backend.home)
    scratch.close()
    assert state is not None
    return [state.position.generation, parts[Part.SERVING], verified.generation]


def test_a_kept_part_survives_a_claim_and_a_swap_that_does_not_keep(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    driver.serve_generation(1, ("a", 1))
    driver.serve_generation(2, ("a", 2))
    with contextlib.closing(backend.open()) as store:
        other = StoreDriver(store)
        other.serve()
        assert backend.read() == (NO_BATCH, [])
        assert other.part(Part.KEPT) == (1, 0, [("a", 1)])
        other.at(1, 0).apply(changes(SCHEMA, ("b", 1)), Part.KEPT)
        other.store.swap_back(other.fence)
    assert backend.read() == (1, [("a", 1), ("b", 1)])


def test_a_swap_that_keeps_replaces_the_earlier_kept_part(backend: StoreFixture, driver: StoreDriver) -> None:
    for generation in (1, 2, 3):
        driver.serve_generation(generation, ("a", generation))
    assert driver.part(Part.KEPT) == (2, 0, [("a", 2)])
    driver.store.drop(Part.KEPT, driver.fence)
    driver.store.drop(Part.KEPT, driver.fence)
    assert driver.part(Part.KEPT) is None
    assert backend.read() == (0, [("a", 3)])


def test_a_view_without_a_kept_part_cannot_be_switched_back(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    for _ in range(2):
        with pytest.raises(NoKeptPart, match="'sales'") as result:
            driver.store.swap_back(driver.fence)
        assert result.value.hint
        driver.serve()
    assert backend.read() == (NO_BATCH, [])


def test_a_rebuild_request_that_was_fulfilled_is_not_pending_after_a_switch_back(driver: StoreDriver) -> None:
    driver.serve()
    driver.store.request_rebuild()
    driver.serve(keep=True)
    driver.store.swap_back(driver.fence)
    serving = driver.store.state(Part.SERVING)
    assert serving is not None
    assert serving.rebuild_requests == driver.store.rebuild_requests()
    driver.store.request_rebuild()
    driver.store.swap_back(driver.fence)
    serving = driver.store.state(Part.SERVING)
    assert serving is not None
    assert serving.rebuild_requests == driver.store.rebuild_requests() - 1


def test_the_serving_part_cannot_be_dropped(backend: StoreFixture, driver: StoreDriver) -> None:
    driver.serve()
    with pytest.raises(ValueError, match="serving part"):
        driver.store.drop(Part.SERVING, driver.fence)
    assert backend.read() == (NO_BATCH, [])


def test_a_scan_that_began_before_a_switch_returns_rows_of_one_generation(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    for generation in (1, 2):
        driver.serve_generation(generation, *((f"k{number}", generation) for number in range(2_500)))
    with contextlib.closing(reader_of(backend)) as reader, reader.scan("sales", 60) as (_, rows):
        first = next(rows)
        driver.at(1, 0).store.swap_back(driver.fence)
        driver.apply(changes(SCHEMA, ("k0", 7)))
        assert {number for _, number in [first, *rows]} == {2}
    with contextlib.closing(reader_of(backend)) as reader, reader.scan("sales", 60) as (_, rows):
        assert {number for _, number in rows} == {1, 7}


def reads_of(backend: StoreFixture, folder: Path) -> Iterator[tuple[int, int, set[int]]]:
    """Read the serving part in the ways of the server and of verify. Yield generation, batch and numbers of each."""
    view = view_of(backend)
    location = location_of(view, "shop", backend.home)
    assert location is not None
    with contextlib.closing(reader_of(backend)) as reader:
        result = reader.query("sales", lambda _: Query(100), 30)
        assert result is not None
        at = result.state.position
        yield at.generation, at.batch, {int(str(number)) for _, number in result.rows}
    sessions: dict[tuple[str, str], Any] = {}
    with open_arrow_reader(location, lambda: 30.0, sessions) as arrow:
        assert arrow is not None
        rows = arrow.read("sales", TableScan((1,)), "")
        assert rows is not None
        at = rows.state.position
        numbers = {number for batch in rows.batches for number in batch.column(0).to_pylist()}
    for session in sessions.values():
        session.close()
    yield at.generation, at.batch, numbers
    verified, scratch = read_snapshot(Path(tempfile.mkdtemp(dir=folder)), view, "shop", backend.home)
    with contextlib.closing(scratch):
        numbers = {number for _, number in scratch.connection.execute("SELECT * FROM found")}
        yield verified.generation, verified.batch, numbers


def test_every_reader_sees_the_rows_of_its_position_while_parts_are_switched(
    backend: StoreFixture, driver: StoreDriver, tmp_path: Path
) -> None:
    """Every row has the number of its generation and batch."""

    def rows(generation: int, batch: int) -> list[Row]:
        return [(f"k{key}", 100 * generation + batch) for key in range(9)]

    for generation in (1, 2):
        driver.serve_generation(generation, *rows(generation, 0))
    stop, seen = threading.Event(), list[tuple[int, int, set[int]]]()

    def read() -> None:
        while not stop.is_set():
            seen.extend(reads_of(backend, tmp_path))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for batch in range(8):
            serving = 2 - batch % 2
            for generation, part in ((serving, Part.SERVING), (3 - serving, Part.KEPT)):
                change = changes(SCHEMA, *rows(generation, batch + 1))
                driver.at(generation, batch).apply(change, part)
            before = len(seen)
            driver.store.swap_back(driver.fence)
            until(lambda: len(seen) > before + 2 or not reader.is_alive(), "reads")  # noqa: B023
    finally:
        stop.set()
        reader.join()
    assert {generation for generation, *_ in seen} == {1, 2}
    assert [read for read in seen if read[2] != {100 * read[0] + read[1]}] == []
