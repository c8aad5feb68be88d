"""Faults that all stores in folders survive under a follower: disks that disappear, are full or are restored, and a log
that deleted unread records.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from faults.stores.delta import read_delta_table
from faults.stores.search import read_search_index
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.model.store import Delta, Search
from headrace.stores.catalog import CatalogFolder
from headrace.stores.delta.writer import DeltaWriter
from headrace.stores.errors import StoreFull, StoreReplaced
from headrace.stores.search.writer import SearchWriter
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.views.folders import Shop
from tests.views.test_topic_views import COMPACTED, removed_below, trim

Fresh = Callable[[str], str]
NAMES = {"search": "shop.search", "delta": "shop.lake"}


@pytest.fixture(params=list(NAMES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder_shop(kind: str, cluster: Cluster, fresh: Fresh, tmp_path: Path) -> Shop:
    return shop(kind, cluster, tmp_path, fresh("orders"))


def shop(kind: str, cluster: Cluster, home: Path, name: str, **configs: str) -> Shop:
    def read_rows(view: str) -> dict[str, Any] | None:
        try:
            found = (
                read_search_index(home / NAMES[kind], view)
                if kind == "search"
                else read_delta_table(home / NAMES[kind] / view)
            )
        except (OSError, ValueError, DeltaError):
            # Another process is changing the files.
            return None
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    cluster.ensure_topic(name, 1, configs)
    return Shop(cluster, home, name, Search() if kind == "search" else Delta(), read_rows)


def open_writer(kind: str, path: Path) -> SearchWriter | DeltaWriter:
    return SearchWriter(path, "sales") if kind == "search" else DeltaWriter(path, "sales")


def catalogs(kind: str, path: Path, view: str) -> Path:
    return path / view / "catalog" if kind == "search" else path / "_headrace" / view / "catalog"


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Folders that are missing for a while


@pytest.mark.parametrize("fault", ["its disk is not mounted", "something is in its place"])
def test_a_follower_waits_for_a_folder_that_is_missing_for_a_while(
    kind: str, folder_shop: Shop, tmp_path: Path, fault: str
) -> None:
    path, moved = tmp_path / NAMES[kind], tmp_path / "away"
    if "mounted" in fault:
        (tmp_path / "disk").mkdir()
        path.symlink_to(tmp_path / "disk")
    folder_shop.write(("a", 1, "one"))
    with folder_shop.following() as follower:
        folder_shop.expect({"a": ("a", 1, "one")})
        if "mounted" in fault:
            (tmp_path / "disk").rename(moved)
        else:
            path.rename(moved)
            path.touch()
        folder_shop.write(("b", 2, "two"))
        until(lambda: str(path) in follower.status.reason, "that it waits", timeout_s=120)
        if "mounted" in fault:
            until(lambda: "does not exist" in follower.status.reason, "what is missing", timeout_s=120)
            moved.rename(tmp_path / "disk")
        else:
            path.unlink()
            moved.rename(path)
        folder_shop.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        assert follower.status.rebuilds == 1
    assert any("waits" in line for line in folder_shop.lines)


def test_an_older_copy_restored_file_by_file_catches_up(kind: str, folder_shop: Shop, tmp_path: Path) -> None:
    """The copy is older than the follower's claim, so the follower finds another owner in its folder."""
    path = tmp_path / NAMES[kind]
    folder_shop.write(("a", 1, "one"))
    with folder_shop.following():
        folder_shop.expect({"a": ("a", 1, "one")})
    shutil.copytree(path, tmp_path / "kept")
    with folder_shop.following():
        folder_shop.write(("b", 2, "two"))
        folder_shop.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        for item in [item for item in path.rglob("*") if item.is_file()]:
            item.unlink(missing_ok=True)
        shutil.copytree(tmp_path / "kept", path, dirs_exist_ok=True)
        folder_shop.write(("c", 3, "three"))
        folder_shop.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})


def test_a_partly_removed_folder_does_not_count_as_foreign(kind: str, tmp_path: Path) -> None:
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        driver = StoreDriver(store)
        driver.serve()
        driver.apply(changes(SCHEMA, ("a", 1)))
    shutil.rmtree(catalogs(kind, tmp_path, "sales"))
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        StoreDriver(store).serve()
        assert list(store.rows()) == []


# Full disks


def test_a_follower_survives_a_full_disk_however_often_it_retries(
    kind: str, folder_shop: Shop, tmp_path: Path
) -> None:
    """The disk has room for the claim, and for nothing else."""
    folder_shop.write(("a", 1, "one"))
    with folder_shop.following() as follower:
        folder_shop.expect({"a": ("a", 1, "one")})
        with room_for(600):
            folder_shop.write(("b", 2, "two"))
            until(lambda: follower.status.state == "waiting", "that it waits", timeout_s=120)
            until(lambda: follower._attempts > 3, "more tries", timeout_s=120)
            # The serving folder and its catalog; for a moment also the folder of the current attempt.
            until(
                lambda: len(_folders(tmp_path / NAMES[kind])) <= 2,
                "the failed attempt to be removed",
                timeout_s=120,
            )
        folder_shop.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        assert follower.status.rebuilds == 1
    assert sum("waits" in line for line in folder_shop.lines) == 1


def _folders(home: Path) -> list[Path]:
    return [path for path in home.rglob("*-*") if path.is_dir()]


def test_a_large_batch_is_retried_until_the_disk_has_room(kind: str, tmp_path: Path) -> None:
    """Files are written while rows are added, and an error of a write appears later."""
    rows = [(f"k{number}" + "x" * 3_000, number) for number in range(2_000)]
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        driver = StoreDriver(store)
        driver.serve()
        with room_for(2_000), pytest.raises(StoreFull):
            driver.apply(changes(SCHEMA, *rows))
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        reopened = StoreDriver(store)
        reopened.apply(changes(SCHEMA, *rows))
        assert sum(1 for _ in store.rows()) == 2_000


# Deleted records of the log


def test_a_follower_absent_while_deletions_expired_rebuilds(
    kind: str, cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("orders")
    created = shop(kind, cluster, tmp_path, name, **COMPACTED, **{"delete.retention.ms": "0"})
    created.write(("a", 1, ""), ("b", 1, ""))
    with created.following():
        created.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
    created.write(("a", None, ""))
    for number in range(30):
        created.write(("fill", number, "x" * 700))
    until(lambda: removed_below(cluster, name) > 2, "the deletion is gone", pause_s=0.05)
    with created.following() as follower:
        created.expect({"b": ("b", 1, ""), "fill": ("fill", 29, "x" * 700)})
        assert follower.status.rebuilds == 1
    assert any("tombstones" in line for line in created.lines)


def test_a_follower_whose_offset_was_deleted_rebuilds_from_the_rest_and_reports_it(
    kind: str, cluster: Cluster, folder_shop: Shop
) -> None:
    folder_shop.write(("a", 1, ""), ("b", 1, ""))
    with folder_shop.following():
        folder_shop.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
    folder_shop.write(("c", 1, ""), ("d", 1, ""))
    trim(cluster, folder_shop.topic, 3)
    with folder_shop.following() as follower:
        folder_shop.expect({"d": ("d", 1, "")})
        assert follower.status.rebuilds == 1
    assert any("records 2 to 2" in line for line in folder_shop.lines)


# The catalog


def test_a_catalog_with_a_lower_version_counts_as_replaced(kind: str, tmp_path: Path) -> None:
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        store.claim("one", 1)
        folder = catalogs(kind, tmp_path, "sales")
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        catalog = CatalogFolder(folder, "sales")
        store.claim("two", 1)
        assert catalog.read().owner == "two"
        for path in folder.iterdir():
            path.unlink()
        with pytest.raises(StoreReplaced):
            catalog.read()
        for name, data in kept.items():
            # Under a higher number, as if other versions were written meanwhile.
            (folder / f"{int(name[:20]) + 7:020}.json").write_bytes(data)
        with pytest.raises(StoreReplaced, match="epoch 1"):
            catalog.read()


def test_a_folder_is_on_disk_before_the_catalog_names_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(open_writer(kind, tmp_path)) as store:
        driver = StoreDriver(store)
        driver.begin()
        driver.apply(changes(SCHEMA, ("a", 1)), Part.BUILDING)
        before = {path.stat().st_ino for path in tmp_path.rglob("*")}
        order: list[int] = []
        sync, link = os.fsync, os.link

        def synced(handle: int) -> None:
            sync(handle)
            order.append(os.fstat(handle).st_ino)

        def linked(old: Any, new: Any) -> None:
            link(old, new)
            if Path(new).parent.name == "catalog":
                order.append(0)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "link", linked)
        store.claim("a successor", 1)
        monkeypatch.undo()
        (named,) = {json.loads(max(catalogs(kind, tmp_path, "sales").glob("*.json")).read_text())["building"]}
        folder = catalogs(kind, tmp_path, "sales").parent / named
        created = [path for path in folder.rglob("*") if not path.name.startswith(".tantivy")]
        needed = {item.stat().st_ino for item in created} - before | {folder.stat().st_ino}
        assert needed <= set(order[: order.index(0)])
