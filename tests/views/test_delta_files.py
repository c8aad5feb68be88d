"""Versions and files of Delta tables: when they are removed, and what happens when other programs write."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Field as DeltaField

from faults.stores.delta import DeltaFixture
from headrace.clock import SystemClock
from headrace.model.kinds import Field, Scalar
from headrace.ops.verify.delta_snapshot import read_delta
from headrace.stores.delta import upkeep
from headrace.stores.delta.table import LakeTable
from headrace.stores.delta.upkeep import EVERY_COMMITS, VERSIONS_MIN
from headrace.stores.delta.writer import DeltaWriter
from headrace.stores.errors import PositionMoved, StoreDamaged, StoreForeign, StoreReplaced
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver
from tests.contract.store_writer import SCHEMA, changes_of, position_of, rows_after
from tests.views.folders import apply_batches, check_full_disk, check_killed_writers, check_zombie_is_rejected

_FILES_MAX = 300


@pytest.fixture
def backend(tmp_path: Path) -> DeltaFixture:
    return DeltaFixture(tmp_path)


class MinutePerReadClock(SystemClock):
    """Every read of the clock is a minute after the previous one."""

    reads = 0

    def now_ms(self) -> int:
        self.reads += 1
        return super().now_ms() + 60_000 * self.reads


def test_many_small_batches_leave_few_files_and_the_last_versions_readable(backend: DeltaFixture) -> None:
    batches = 120
    with contextlib.closing(DeltaWriter(backend.path, "sales", MinutePerReadClock())) as store:
        apply_batches(store, batches)
    assert backend.read() == (batches - 1, rows_after(batches - 1))
    files = [path for path in backend.path.rglob("*") if path.is_file()]
    assert len(files) < _FILES_MAX
    assert sum(path.stat().st_size for path in files) < 2 << 20
    table = DeltaTable(str(backend.path / "sales"))
    assert len(table.file_uris()) < 30
    older = DeltaTable(str(backend.path / "sales"), version=table.version() - VERSIONS_MIN // 2)
    assert older.to_pyarrow_table().num_rows > 0


def test_the_files_of_an_old_version_stay_for_a_while(backend: DeltaFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 2)
        older = DeltaTable(str(backend.path / "sales"))
        for batch in range(2, 2 * VERSIONS_MIN):
            store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
        assert older.to_pyarrow_table().num_rows == len(rows_after(1))


@pytest.mark.parametrize("bound", ["time", "versions", "bytes"])
def test_old_versions_are_removed_by_age_by_count_and_by_size(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "versions":
        monkeypatch.setattr(upkeep, "VERSIONS_MAX", 20)
    if bound == "bytes":
        monkeypatch.setattr(upkeep, "UNUSED_BYTES", 0)
    monkeypatch.setattr(upkeep, "VERSIONS_MIN", 10)
    with contextlib.closing(
        DeltaWriter(tmp_path, "sales", MinutePerReadClock() if bound == "time" else None)
    ) as store:
        apply_batches(store, 110)
    data = len(list((tmp_path / "sales").glob("*.parquet")))
    log = len(list((tmp_path / "sales" / "_delta_log").iterdir()))
    # Files written since the last merge exist too.
    assert data < 20 + 2 * EVERY_COMMITS, (data, log)
    assert log < 20 + 4 * EVERY_COMMITS, (data, log)
    table = DeltaTable(str(tmp_path / "sales"))
    assert table.to_pyarrow_table().num_rows == len(rows_after(109))
    DeltaTable(str(tmp_path / "sales"), version=table.version() - 3).to_pyarrow_table()


def test_files_of_killed_writers_are_removed_once_they_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_ORPHANS_EVERY", 1)
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        fence = apply_batches(store, 1)
        home = tmp_path / "sales"
        orphans = [
            home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet",
            home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet#1",
            home / "_delta_log" / f"_commit_{uuid.uuid4()}.json.tmp",
        ]
        fresh = home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        users_file = home / "mine.txt"
        for path in [*orphans, fresh, users_file]:
            path.write_bytes(b"half")
        for path in [*orphans, users_file]:
            os.utime(path, (1, 1))
        for batch in range(1, EVERY_COMMITS + 2):
            store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
        assert [path.exists() for path in [*orphans, fresh, users_file]] == [False, False, False, True, True]
        assert list(store.rows()) == rows_after(EVERY_COMMITS + 1)


def test_a_rebuild_is_a_version_of_the_same_table(backend: DeltaFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 2)
        before = DeltaTable(str(backend.path / "sales"))
        view_schema = ViewSchema((Field("other", Scalar("text"), False),), ("other",))
        store.begin(view_schema, position_of(NO_BATCH), "", fence)
        store.swap(fence)
        after = DeltaTable(str(backend.path / "sales"))
        assert after.version() == before.version() + 1
        assert [column.name for column in after.schema().fields] == ["other"]
        assert before.to_pyarrow_table().num_rows == len(rows_after(1))


def test_a_compaction_by_another_program_does_not_stop_a_follower(backend: DeltaFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 3)
        other = DeltaTable(str(backend.path / "sales"))
        other.optimize.z_order(["key"])
        assert store.state(Part.SERVING) is not None
        store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
    assert backend.read() == (3, rows_after(3))


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_a_view_changed_by_another_program_is_reported_and_rebuilt(backend: DeltaFixture, what: str) -> None:
    def change() -> None:
        table = str(backend.path / "sales")
        if what == "rows":
            write_deltalake(table, pa.table({"key": ["k01"], "number": [7]}), mode="append")
        else:
            DeltaTable(table).alter.add_columns([DeltaField("more", "string")])

    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 3)
        change()
        state = store.state(Part.SERVING)
        assert state is not None
        assert "another program" in state.fault
        with pytest.raises(PositionMoved, match="another program"):
            store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
    for _ in range(2):
        # The next writer still detects the change of the other program.
        with contextlib.closing(backend.open()) as store:
            store.claim("a test", 1)
            state = store.state(Part.SERVING)
            assert state is not None
            assert "another program" in state.fault
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 3)
        state = store.state(Part.SERVING)
        assert state is not None
        assert not state.fault
    assert backend.read() == (2, rows_after(2))


@pytest.mark.parametrize("orphans", ["data", "a commit"])
def test_files_of_a_commit_into_a_removed_folder_do_not_count_as_foreign(
    backend: DeltaFixture, orphans: str
) -> None:
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 3)
    path, copy = backend.path / "sales", backend.path.parent / "kept"
    path.rename(copy)
    (path / "_delta_log").mkdir(parents=True)
    (file,) = DeltaTable(str(copy)).file_uris()
    shutil.copy(file, path)
    if orphans == "a commit":
        shutil.copy(max((copy / "_delta_log").glob("*.json")), path / "_delta_log")
    with contextlib.closing(backend.open()) as store:
        assert store.state(Part.SERVING) is None
        apply_batches(store, 3)
    assert backend.read() == (2, rows_after(2))


def test_a_table_removed_during_a_commit_counts_as_removed(
    backend: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = LakeTable.apply

    def apply_to_removed_folder(table: LakeTable, *arguments: Any) -> None:
        shutil.rmtree(table.folder)
        apply(table, *arguments)

    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 0)
        monkeypatch.setattr(LakeTable, "apply", apply_to_removed_folder)
        with pytest.raises(StoreReplaced):
            store.apply(Part.SERVING, changes_of(0), position_of(-1), position_of(0), fence)
    monkeypatch.undo()
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 2)
    assert backend.read() == (1, rows_after(1))


def test_a_foreign_table_is_not_changed(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "sales"), pa.table({"x": [1]}))
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store, pytest.raises(StoreForeign):
        store.claim("a test", 1)
    assert DeltaTable(str(tmp_path / "sales")).version() == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with contextlib.closing(DeltaWriter(tmp_path, "other")) as store, pytest.raises(StoreForeign):
        StoreDriver(store).serve(SCHEMA)
    (tmp_path / "files").mkdir()
    spark = tmp_path / "files" / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    pq.write_table(pa.table({"key": ["a"], "number": [1]}), spark)
    with contextlib.closing(DeltaWriter(tmp_path, "files")) as store, pytest.raises(StoreForeign):
        StoreDriver(store).serve(SCHEMA)
    assert spark.exists()


def test_a_damaged_file_is_reported_and_a_table_that_lacks_files_is_rebuilt(backend: DeltaFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 3)
        (file,) = DeltaTable(str(backend.path / "sales")).file_uris()
        path = Path(file)
        copy = path.read_bytes()
        path.write_bytes(b"\xa5" * len(copy))
        with pytest.raises(StoreDamaged) as result:
            store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
        assert "rebuild" in result.value.hint
        path.unlink()
    with contextlib.closing(backend.open()) as store:
        store.claim("a test", 1)
        state = store.state(Part.SERVING)
        assert state is not None
        # So the follower rebuilds it.
        assert "files of the table are missing" in state.fault
    with contextlib.closing(backend.open()) as store:
        store.claim("a test", 1)
        state = store.state(Part.SERVING)
        assert state is not None
        assert "files of the table are missing" in state.fault
        apply_batches(store, 3)
    assert backend.read() == (2, rows_after(2))


def test_a_truncated_file_counts_as_missing(backend: DeltaFixture) -> None:
    """Simulate a power loss: the Delta log lists a file, but only a part of the file reached the disk."""
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 3)
    (file,) = DeltaTable(str(backend.path / "sales")).file_uris()
    os.truncate(file, 10)
    with contextlib.closing(backend.open()) as store:
        store.claim("a test", 1)
        state = store.state(Part.SERVING)
        assert state is not None
        assert state.fault


def test_verify_reads_a_table_again_when_its_files_disappear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these settings, every commit removes the files of the previous version."""
    for name, value in {"EVERY_COMMITS": 1, "UNUSED_BYTES": 0, "UNUSED_SIZE_FACTOR": 0}.items():
        monkeypatch.setattr(upkeep, name, value)
    done = threading.Event()
    with contextlib.closing(DeltaWriter(tmp_path, "sales")) as store:
        fence = apply_batches(store, 1)

        def write() -> None:
            for batch in range(1, 10_000):
                if done.is_set():
                    return
                store.apply(
                    Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence
                )

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(30):
                (tmp_path / str(number)).mkdir()
                served, scratch = read_delta(tmp_path / str(number), tmp_path, "sales")
                assert scratch.count("found") == len(rows_after(served.batch))
                scratch.close()
        finally:
            done.set()
            writer.join()


def test_a_follower_waits_for_a_full_disk(backend: DeltaFixture) -> None:
    check_full_disk(backend)


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_that_was_replaced_during_a_batch_cannot_write(backend: DeltaFixture, seed: int) -> None:
    check_zombie_is_rejected(backend, seed)


def test_repeated_kills_leave_a_bounded_number_of_files(backend: DeltaFixture) -> None:
    check_killed_writers(backend, 5, seed=12)
    assert len([path for path in backend.path.rglob("*") if path.is_file()]) < _FILES_MAX
