"""Versions and files of Delta tables: how long they are kept, who else writes them, and what is left of them."""

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

from headrace.clock import SystemClock
from headrace.model.kinds import Field, Plain
from headrace.ops.served_delta import read_delta
from headrace.views.delta import upkeep
from headrace.views.delta.store import DeltaStore
from headrace.views.delta.table import LakeTable
from headrace.views.delta.upkeep import EVERY_COMMITS, VERSIONS_KEPT
from headrace.views.errors import PositionMoved, StoreDamaged, StoreForeign, StoreReplaced
from headrace.views.position import NO_BATCH, Shape
from headrace.views.store import Part
from tests.contract.see_delta import SeeDelta
from tests.contract.store_hand import Hand
from tests.contract.store_writer import SHAPE, changes_of, position_of, rows_after
from tests.views.folders import a_writer_is_killed, a_zombie_wakes, grown, without_room

_FILES_MAX = 300


@pytest.fixture
def see(tmp_path: Path) -> SeeDelta:
    return SeeDelta(tmp_path)


class Later(SystemClock):
    """Every look at the clock is a minute after the one before."""

    looks = 0

    def now_ms(self) -> int:
        self.looks += 1
        return super().now_ms() + 60_000 * self.looks


def test_many_small_batches_leave_few_files_and_the_last_versions_readable(see: SeeDelta) -> None:
    batches = 120
    with contextlib.closing(DeltaStore(see.path, "sales", Later())) as store:
        grown(store, batches)
    assert see.look() == (batches - 1, rows_after(batches - 1))
    files = [path for path in see.path.rglob("*") if path.is_file()]
    assert len(files) < _FILES_MAX
    assert sum(path.stat().st_size for path in files) < 2 << 20
    table = DeltaTable(str(see.path / "sales"))
    assert len(table.file_uris()) < 30
    older = DeltaTable(str(see.path / "sales"), version=table.version() - VERSIONS_KEPT // 2)
    assert older.to_pyarrow_table().num_rows > 0


def test_a_reader_keeps_the_files_of_its_version_for_a_while(see: SeeDelta) -> None:
    with contextlib.closing(see.open()) as store:
        fence = grown(store, 2)
        older = DeltaTable(str(see.path / "sales"))
        for batch in range(2, 2 * VERSIONS_KEPT):
            store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
        assert older.to_pyarrow_table().num_rows == len(rows_after(1))


@pytest.mark.parametrize("bound", ["time", "versions", "bytes"])
def test_old_versions_go_by_time_and_before_that_by_their_number_and_size(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "versions":
        monkeypatch.setattr(upkeep, "VERSIONS_MAX", 20)
    if bound == "bytes":
        monkeypatch.setattr(upkeep, "DEAD_BYTES", 0)
    monkeypatch.setattr(upkeep, "VERSIONS_KEPT", 10)
    with contextlib.closing(DeltaStore(tmp_path, "sales", Later() if bound == "time" else None)) as store:
        grown(store, 110)
    data = len(list((tmp_path / "sales").glob("*.parquet")))
    log = len(list((tmp_path / "sales" / "_delta_log").iterdir()))
    # And what came since it was last tidied up.
    assert data < 20 + 2 * EVERY_COMMITS, (data, log)
    assert log < 20 + 4 * EVERY_COMMITS, (data, log)
    table = DeltaTable(str(tmp_path / "sales"))
    assert table.to_pyarrow_table().num_rows == len(rows_after(109))
    DeltaTable(str(tmp_path / "sales"), version=table.version() - 3).to_pyarrow_table()


def test_what_killed_writers_leave_is_removed_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_LOST_EVERY", 1)
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        fence = grown(store, 1)
        home = tmp_path / "sales"
        left = [
            home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet",
            home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet#1",
            home / "_delta_log" / f"_commit_{uuid.uuid4()}.json.tmp",
        ]
        fresh = home / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        mine = home / "mine.txt"
        for path in [*left, fresh, mine]:
            path.write_bytes(b"half")
        for path in [*left, mine]:
            os.utime(path, (1, 1))
        for batch in range(1, EVERY_COMMITS + 2):
            store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
        assert [path.exists() for path in [*left, fresh, mine]] == [False, False, False, True, True]
        assert list(store.rows()) == rows_after(EVERY_COMMITS + 1)


def test_a_rebuild_is_a_version_of_the_same_table(see: SeeDelta) -> None:
    with contextlib.closing(see.open()) as store:
        fence = grown(store, 2)
        before = DeltaTable(str(see.path / "sales"))
        shape = Shape((Field("other", Plain("text"), False),), ("other",))
        store.begin(shape, position_of(NO_BATCH), "", fence)
        store.swap(fence)
        after = DeltaTable(str(see.path / "sales"))
        assert after.version() == before.version() + 1
        assert [one.name for one in after.schema().fields] == ["other"]
        assert before.to_pyarrow_table().num_rows == len(rows_after(1))


def test_what_others_tidy_up_does_not_hold_a_follower_up(see: SeeDelta) -> None:
    with contextlib.closing(see.open()) as store:
        fence = grown(store, 3)
        other = DeltaTable(str(see.path / "sales"))
        other.optimize.z_order(["key"])
        assert store.standing(Part.SERVING) is not None
        store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
    assert see.look() == (3, rows_after(3))


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_what_others_change_is_built_again_and_they_are_named(see: SeeDelta, what: str) -> None:
    def change() -> None:
        table = str(see.path / "sales")
        if what == "rows":
            write_deltalake(table, pa.table({"key": ["k01"], "number": [7]}), mode="append")
        else:
            DeltaTable(table).alter.add_columns([DeltaField("more", "string")])

    with contextlib.closing(see.open()) as store:
        fence = grown(store, 3)
        change()
        standing = store.standing(Part.SERVING)
        assert standing is not None
        assert "somebody else" in standing.fault
        with pytest.raises(PositionMoved, match="somebody else"):
            store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
    for _ in range(2):
        # It is not forgotten by who comes later.
        with contextlib.closing(see.open()) as store:
            store.take("a test", 1)
            standing = store.standing(Part.SERVING)
            assert standing is not None
            assert "somebody else" in standing.fault
    with contextlib.closing(see.open()) as store:
        grown(store, 3)
        standing = store.standing(Part.SERVING)
        assert standing is not None
        assert not standing.fault
    assert see.look() == (2, rows_after(2))


@pytest.mark.parametrize("left", ["data", "a commit"])
def test_what_a_commit_leaves_in_a_folder_that_was_removed_under_it_is_no_stranger_s(
    see: SeeDelta, left: str
) -> None:
    with contextlib.closing(see.open()) as store:
        grown(store, 3)
    path, kept = see.path / "sales", see.path.parent / "kept"
    path.rename(kept)
    (path / "_delta_log").mkdir(parents=True)
    (file,) = DeltaTable(str(kept)).file_uris()
    shutil.copy(file, path)
    if left == "a commit":
        shutil.copy(max((kept / "_delta_log").glob("*.json")), path / "_delta_log")
    with contextlib.closing(see.open()) as store:
        assert store.standing(Part.SERVING) is None
        grown(store, 3)
    assert see.look() == (2, rows_after(2))


def test_a_table_that_goes_in_the_middle_of_a_commit_is_a_table_that_is_gone(
    see: SeeDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = LakeTable.apply

    def struck(table: LakeTable, *given: Any) -> None:
        shutil.rmtree(table.folder)
        apply(table, *given)

    with contextlib.closing(see.open()) as store:
        fence = grown(store, 0)
        monkeypatch.setattr(LakeTable, "apply", struck)
        with pytest.raises(StoreReplaced):
            store.apply(Part.SERVING, changes_of(0), position_of(-1), position_of(0), fence)
    monkeypatch.undo()
    with contextlib.closing(see.open()) as store:
        grown(store, 2)
    assert see.look() == (1, rows_after(1))


def test_a_table_that_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "sales"), pa.table({"x": [1]}))
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store, pytest.raises(StoreForeign):
        store.take("a test", 1)
    assert DeltaTable(str(tmp_path / "sales")).version() == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with contextlib.closing(DeltaStore(tmp_path, "other")) as store, pytest.raises(StoreForeign):
        Hand(store).serve(SHAPE)
    (tmp_path / "files").mkdir()
    spark = tmp_path / "files" / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    pq.write_table(pa.table({"key": ["a"], "number": [1]}), spark)
    with contextlib.closing(DeltaStore(tmp_path, "files")) as store, pytest.raises(StoreForeign):
        Hand(store).serve(SHAPE)
    assert spark.exists()


def test_a_damaged_file_is_told_and_a_table_without_its_files_is_built_again(see: SeeDelta) -> None:
    with contextlib.closing(see.open()) as store:
        fence = grown(store, 3)
        (file,) = DeltaTable(str(see.path / "sales")).file_uris()
        path = Path(file)
        kept = path.read_bytes()
        path.write_bytes(b"\xa5" * len(kept))
        with pytest.raises(StoreDamaged) as told:
            store.apply(Part.SERVING, changes_of(3), position_of(2), position_of(3), fence)
        assert "built again" in told.value.hint
        path.unlink()
    with contextlib.closing(see.open()) as store:
        store.take("a test", 1)
        standing = store.standing(Part.SERVING)
        assert standing is not None
        # Which is how a follower is told to build it anew.
        assert "files are missing" in standing.fault
    with contextlib.closing(see.open()) as store:
        store.take("a test", 1)
        standing = store.standing(Part.SERVING)
        assert standing is not None
        assert "files are missing" in standing.fault
        grown(store, 3)
    assert see.look() == (2, rows_after(2))


def test_a_file_that_was_cut_short_is_a_file_that_is_missing(see: SeeDelta) -> None:
    """As after a loss of power: the table is whole, and not all of it came to the disk."""
    with contextlib.closing(see.open()) as store:
        grown(store, 3)
    (file,) = DeltaTable(str(see.path / "sales")).file_uris()
    os.truncate(file, 10)
    with contextlib.closing(see.open()) as store:
        store.take("a test", 1)
        standing = store.standing(Part.SERVING)
        assert standing is not None
        assert standing.fault


def test_a_table_whose_files_go_while_it_is_proven_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every commit removes what the one before has."""
    for name, value in {"EVERY_COMMITS": 1, "DEAD_BYTES": 0, "DEAD_TIMES": 0}.items():
        monkeypatch.setattr(upkeep, name, value)
    done = threading.Event()
    with contextlib.closing(DeltaStore(tmp_path, "sales")) as store:
        fence = grown(store, 1)

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


def test_a_full_disk_is_waited_for(see: SeeDelta) -> None:
    without_room(see)


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_that_slept_in_a_batch_and_was_replaced_is_refused(see: SeeDelta, seed: int) -> None:
    a_zombie_wakes(see, seed)


def test_a_writer_that_is_killed_again_and_again_leaves_nothing_that_grows(see: SeeDelta) -> None:
    a_writer_is_killed(see, 5, seed=12)
    assert len([path for path in see.path.rglob("*") if path.is_file()]) < _FILES_MAX
