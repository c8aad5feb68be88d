"""The contract of the kept part of a view: a former serving part, which can serve again. Every store must pass it."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from faults.stores.port import StoreFixture
from headrace.model.declarations import Topic, View
from headrace.model.kinds import Field, Scalar
from headrace.ops.verify.snapshot import read_snapshot
from headrace.stores.errors import NoKeptPart
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.reader import StoreReader
from headrace.stores.registry import open_reader
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
