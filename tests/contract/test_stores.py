"""The contract of a store: one suite, which every store must pass.

``StoreFixture`` reads position and rows of a store in one snapshot, with the store's own tools instead of our code.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from faults.stores.port import StoreFixture
from headrace.model.declarations import Topic, View
from headrace.ops.verify.snapshot import read_snapshot
from headrace.stores.errors import NameRefused, PositionMoved, StaleWriter, StoreReplaced
from headrace.stores.position import NO_BATCH, Position
from headrace.stores.registry import open_reader
from headrace.stores.rows import Row
from headrace.stores.writer import Fence, Owner, Part
from tests.contract.store_driver import EVERY_KIND, StoreDriver, changes
from tests.contract.store_model import Model
from tests.contract.store_writer import SCHEMA, position_of, rows_after

# Rows and positions


def test_a_view_serves_nothing_before_its_first_swap(backend: StoreFixture, driver: StoreDriver) -> None:
    assert driver.store.state(Part.SERVING) is None
    driver.begin()
    driver.apply(changes(SCHEMA, ("a", 1)), Part.BUILDING)
    assert backend.read() is None
    driver.store.swap(driver.fence)
    assert backend.read() == (0, [("a", 1)])
    assert driver.store.state(Part.BUILDING) is None


def test_rows_are_inserted_replaced_and_deleted_by_key(backend: StoreFixture, driver: StoreDriver) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 1), ("c", 1)))
    driver.apply(changes(SCHEMA, ("b", 2), deleted=(("c",), ("missing",))))
    assert backend.read() == (1, [("a", 1), ("b", 2)])


def test_the_last_change_of_a_key_in_a_batch_counts(backend: StoreFixture, driver: StoreDriver) -> None:
    driver.serve()
    created = changes(SCHEMA, ("a", 1), ("a", 2), ("b", 1), deleted=(("b",), ("c",)))
    created.put(("c", 3))
    driver.apply(created)
    assert backend.read() == (0, [("a", 2), ("c", 3)])


def test_the_state_of_a_view_survives_a_close(backend: StoreFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.serve(EVERY_KIND)
        driver.apply(changes(EVERY_KIND))
        assert store.state(Part.SERVING) is not None
    with contextlib.closing(backend.open()) as store:
        found = store.state(Part.SERVING)
        assert found is not None
        assert (found.position, found.schema.to_json(), found.reason) == (
            driver.position,
            EVERY_KIND.to_json(),
            "a test",
        )


def test_the_sources_of_a_realtime_view_survive_a_restart_for_all_readers(
    backend: StoreFixture, tmp_path: Path
) -> None:
    view = View("sales", Topic("sales", None, ("key",)), ("key",), backend.declared())
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.begin()
        driver.apply(changes(SCHEMA, ("a", 1)), Part.BUILDING)
        store.swap(driver.fence)
        driver.apply(changes(SCHEMA, ("b", 2)))
    sources = {"0/0": 7, "0/12": 2**40 + 1}
    with contextlib.closing(backend.open()) as store:
        found = store.state(Part.SERVING)
        assert found is not None
        assert found.position == driver.position
        assert found.position.sources == sources
        # Read with the reader and with verify, which share no code with the writer.
        reader = open_reader(view, "shop", backend.home)
        assert reader is not None
        with contextlib.closing(reader):
            assert [view.state.position.sources for view in reader.views()] == [sources]
        served, scratch = read_snapshot(tmp_path, view, "shop", backend.home)
        scratch.close()
        assert (served.sources, served.batch) == (sources, 1)
        restarted = StoreDriver(store)
        restarted.position = found.position
        restarted.apply(changes(SCHEMA, ("b", 3)))
    assert backend.read() == (2, [("a", 1), ("b", 3)])


# Fences


def write_operations(driver: StoreDriver) -> dict[str, Callable[[], object]]:
    return {
        "begin": driver.begin,
        "apply": lambda: driver.apply(changes(SCHEMA, ("z", 9))),
        "apply to building": lambda: driver.apply(changes(SCHEMA, ("z", 9)), Part.BUILDING),
        "apply to kept": lambda: driver.apply(changes(SCHEMA, ("z", 9)), Part.KEPT),
        "swap": lambda: driver.store.swap(driver.fence),
        "swap and keep": lambda: driver.store.swap(driver.fence, keep=True),
        "swap back": lambda: driver.store.swap_back(driver.fence),
        "drop building": lambda: driver.store.drop(Part.BUILDING, driver.fence),
        "drop kept": lambda: driver.store.drop(Part.KEPT, driver.fence),
    }


OPERATIONS = (
    *("begin", "apply", "apply to building", "apply to kept"),
    *("swap", "swap and keep", "swap back", "drop building", "drop kept"),
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_write_of_a_replaced_follower_is_refused(
    backend: StoreFixture, driver: StoreDriver, operation: str
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("old", 1)))
    driver.serve(keep=True)
    driver.apply(changes(SCHEMA, ("a", 1)))
    serving_position = driver.position
    driver.begin()
    driver.position = serving_position
    with contextlib.closing(backend.open()) as other:
        successor = StoreDriver(other)
        with pytest.raises(StaleWriter) as refused:
            write_operations(driver)[operation]()
        result = str(refused.value)
        assert f"epoch {driver.owner.epoch} " in result
        assert f"epoch {successor.owner.epoch} " in result
        assert successor.part(Part.BUILDING) == (1, NO_BATCH, [])
        assert successor.part(Part.KEPT) == (1, 0, [("old", 1)])
    assert backend.read() == (0, [("a", 1)])


def test_an_epoch_is_assigned_once(backend: StoreFixture) -> None:
    epochs = []
    for _ in range(3):
        with contextlib.closing(backend.open()) as store:
            epochs += [store.claim("a", 1).epoch, store.claim("a", 1).epoch]
    assert epochs == sorted(set(epochs))


def test_a_follower_that_returns_after_its_replacement_is_refused(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    with contextlib.closing(backend.open()) as other:
        other.claim("other", 1)
        with pytest.raises(StaleWriter):
            driver.store.claim("driver", 1, driver.owner)
        restarted = other.claim("other", 1, Owner(2, "other"))
    assert restarted.epoch == 3


def test_a_follower_keeps_its_view_after_a_restore_from_before_its_claim(driver: StoreDriver) -> None:
    """After a restore from a backup, the store has an older owner."""
    assert driver.store.claim("driver", 1, Owner(7, "driver")).epoch == 8


def test_a_follower_that_lost_the_response_to_its_claim_keeps_the_view(driver: StoreDriver) -> None:
    """The server failed after the claim, so the follower owns the view but did not receive the response."""
    driver.store.claim("again", 1, driver.owner)
    driver.owner = driver.store.claim("again", 1, driver.owner)
    assert driver.owner.epoch == 3
    driver.serve()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_restored_from_before_the_claim_needs_a_new_claim(
    driver: StoreDriver, operation: str
) -> None:
    """The next write fails. After the follower has claimed the view again, the same write succeeds."""
    driver.serve()
    driver.serve(keep=True)
    serving_position = driver.position
    driver.begin()
    driver.position = serving_position
    previous_owner, driver.owner = driver.owner, Owner(7, "driver")
    with pytest.raises(StoreReplaced) as result:
        write_operations(driver)[operation]()
    assert result.value.retriable
    assert str(previous_owner) in str(result.value)
    driver.owner = driver.store.claim("driver", 1, driver.owner)
    assert driver.owner.epoch == 8
    write_operations(driver)[operation]()


def test_the_error_for_a_write_of_another_generation_names_both_generations(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    driver.serve()
    driver.generation = 2
    driver.serve(keep=True)
    driver.apply(changes(SCHEMA, ("a", 1)))
    old, new = Fence(driver.owner, 1), driver.fence
    attempts: list[Callable[[], object]] = [
        lambda: driver.store.apply(
            Part.SERVING, changes(SCHEMA, ("a", 0)), driver.position, position_of(1, 1), old
        ),
        lambda: driver.store.apply(
            Part.SERVING, changes(SCHEMA, ("a", 0)), driver.position, position_of(1, 1), driver.fence
        ),
        lambda: driver.store.apply(
            Part.KEPT, changes(SCHEMA), position_of(NO_BATCH, 1), position_of(0, 1), new
        ),
        lambda: driver.store.swap_back(new),
    ]
    for attempt in attempts:
        with pytest.raises(StaleWriter, match=r"generation [12]\b.*generation [12]\b") as refused:
            attempt()
        assert "generation 1" in str(refused.value)
        assert "generation 2" in str(refused.value)
    assert backend.read() == (0, [("a", 1)])


def test_a_write_based_on_another_position_is_rejected(backend: StoreFixture, driver: StoreDriver) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    with pytest.raises(PositionMoved):
        driver.store.apply(
            Part.SERVING, changes(SCHEMA, ("a", 0)), position_of(7, 1), position_of(8, 1), driver.fence
        )
    with pytest.raises(PositionMoved):
        driver.apply(changes(SCHEMA, ("a", 0)), Part.BUILDING)
    assert backend.read() == (0, [("a", 1)])


# Building a new table beside the serving table


def test_an_older_generation_than_the_serving_one_can_be_built(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    driver.serve_generation(2, ("a", 2))
    driver.generation = 1
    driver.begin()
    driver.apply(changes(SCHEMA, ("a", 1)), Part.BUILDING)
    driver.store.swap(driver.fence)
    assert driver.part(Part.SERVING) == (1, 0, [("a", 1)])
    assert backend.read() == (0, [("a", 1)])


def test_the_old_table_serves_until_the_new_one_replaces_it(
    backend: StoreFixture, driver: StoreDriver
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    driver.generation = 2
    driver.begin(EVERY_KIND)
    row: Row = ("b", 1, 0.5, True, "1.000000", b"x")
    driver.apply(changes(EVERY_KIND, row), Part.BUILDING)
    assert backend.read() == (0, [("a", 1)])
    driver.store.swap(driver.fence)
    assert list(driver.store.rows()) == [row]
    found = driver.store.state(Part.SERVING)
    assert found is not None
    assert (found.position, found.schema.key) == (driver.position, ("key",))
    assert driver.store.state(Part.BUILDING) is None


def test_a_build_continues_after_a_restart_and_starts_over_on_request(backend: StoreFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.begin()
        driver.apply(changes(SCHEMA, ("a", 1)), Part.BUILDING)
    with contextlib.closing(backend.open()) as store:
        restarted = StoreDriver(store)
        restarted.position = driver.position
        restarted.apply(changes(SCHEMA, ("b", 1)), Part.BUILDING)
        assert list(store.rows(Part.BUILDING)) == [("a", 1), ("b", 1)]
        restarted.begin()
        assert list(store.rows(Part.BUILDING)) == []
        restarted.store.drop(Part.BUILDING, restarted.fence)
        assert store.state(Part.BUILDING) is None


def test_a_rebuild_request_is_fulfilled_by_the_next_build(backend: StoreFixture, driver: StoreDriver) -> None:
    driver.serve()
    with contextlib.closing(backend.open()) as other:
        other.request_rebuild()
    serving = driver.store.state(Part.SERVING)
    assert serving is not None
    assert serving.rebuild_requests < driver.store.rebuild_requests()
    driver.serve()
    serving = driver.store.state(Part.SERVING)
    assert serving is not None
    assert serving.rebuild_requests == driver.store.rebuild_requests()


def test_views_of_one_store_are_independent(backend: StoreFixture) -> None:
    with contextlib.closing(backend.open("one")) as first, contextlib.closing(backend.open("two")) as second:
        first_driver, second_driver = StoreDriver(first), StoreDriver(second)
        first_driver.serve()
        second_driver.begin()
        second_driver.apply(changes(SCHEMA, ("b", 2)), Part.BUILDING)
        first_driver.apply(changes(SCHEMA, ("a", 1)))
        second_driver.store.swap(second_driver.fence)
    assert backend.read("one") == (0, [("a", 1)])
    assert backend.read("two") == (0, [("b", 2)])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\0b", "a b", "ä", "x" * 245, 'x"; DROP TABLE y; --']
)
def test_a_name_that_could_be_a_path_or_sql_is_refused(
    backend: StoreFixture, tmp_path: Path, name: str
) -> None:
    # Stores on servers keep changing the parent of this folder.
    before, beside = sorted(tmp_path.rglob("*")), set(tmp_path.parent.iterdir())
    with pytest.raises(NameRefused):
        backend.open(name)
    assert sorted(tmp_path.rglob("*")) == before
    assert set(tmp_path.parent.iterdir()) <= beside


@pytest.mark.parametrize("name", ["x" * 244, "a-b.c_d", "select", "1", "group"])
def test_every_name_of_a_topic_can_name_a_view(backend: StoreFixture, name: str) -> None:
    with contextlib.closing(backend.open(name)) as store:
        driver = StoreDriver(store)
        driver.serve()
        driver.apply(changes(SCHEMA, ("a", 1)))
        driver.serve(keep=True)
        driver.store.swap_back(driver.fence)
        assert list(store.rows()) == [("a", 1)]


# Readers during writes


def test_a_reader_sees_only_complete_batches(backend: StoreFixture, driver: StoreDriver) -> None:
    """Every row of a batch has its number. Rebuilt parts are swapped in between, and kept parts serve again."""
    driver.serve()
    done, seen, problems = threading.Event(), set(), []

    def read() -> None:
        while not done.is_set() or not seen:
            started_s = time.monotonic()
            found = backend.read()
            # Leave time for the writer.
            time.sleep(time.monotonic() - started_s)
            assert found is not None
            batch, rows = found
            seen.add(batch)
            if batch != NO_BATCH and {number for _, number in rows} != {batch}:
                problems.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    kept_position = driver.position
    for number in range(60 if backend.is_slow else 150):
        rows: list[Row] = [(f"k{item}", driver.position.batch + 1) for item in range(40)]
        if number % 20 == 19:
            kept_position = driver.position
            driver.begin()
            driver.store.apply(Part.BUILDING, changes(SCHEMA), driver.position, kept_position, driver.fence)
            driver.position = kept_position
            driver.apply(changes(SCHEMA, *rows), Part.BUILDING)
            driver.store.swap(driver.fence, keep=True)
        elif number > 20 and number % 20 in (5, 10):
            driver.store.swap_back(driver.fence)
            driver.position, kept_position = kept_position, driver.position
        else:
            driver.apply(changes(SCHEMA, *rows))
    done.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert len(seen) > 3


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_leaves_rows_and_position_of_one_batch(backend: StoreFixture, seed: int) -> None:
    rng = random.Random(seed)
    last = -2
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_writer", backend.opener()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        batches = rng.randint(1, 12 if backend.is_slow else 30)
        for line in writer.stdout:
            if int(line) >= last + batches:
                break
        # Kill the writer at a random time during the next batches.
        threading.Event().wait(rng.uniform(0, 0.003))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = backend.read()
        assert found is not None
        batch, rows = found
        assert batch > last
        assert rows == rows_after(batch)
        with contextlib.closing(backend.open()) as store:
            kept = store.state(Part.KEPT)
            if kept is not None:
                assert list(store.rows(Part.KEPT)) == rows_after(kept.position.batch)
        last = batch


def test_a_store_equals_a_dict_after_any_sequence_of_operations(
    backend: StoreFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    class Fresh(Model):
        def __init__(self) -> None:
            self.backend = type(backend)(tmp_path_factory.mktemp("model"))
            super().__init__()

    run_state_machine_as_test(
        Fresh, settings=settings(max_examples=backend.histories, stateful_step_count=25)
    )


def test_positions_of_every_kind_are_restored(driver: StoreDriver) -> None:
    position = Position(
        "t.g2", "id", {0: 5, 12: 2**62}, 1, 7, "pid", 99, {0: 3}, complete_ms=5, stored_ms=6, dead=4
    )
    driver.store.begin(SCHEMA, position, "why", driver.fence)
    found = driver.store.state(Part.BUILDING)
    assert found is not None
    assert found.position == position
