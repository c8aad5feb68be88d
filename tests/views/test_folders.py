"""What all stores that are folders outlast under a follower: disks that go, are full or are put back, and a log that
has forgotten what they have not read.
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

from headrace.client.cluster import Cluster
from headrace.model.store import Delta, Search
from headrace.views.catalog import CatalogFolder
from headrace.views.delta.store import DeltaStore
from headrace.views.errors import StoreFull, StoreReplaced
from headrace.views.search.store import SearchStore
from headrace.views.store import Part
from tests.contract.see_delta import look_at_delta
from tests.contract.see_search import look_at_search
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE
from tests.support.waiting import until
from tests.views.folders import Shop
from tests.views.test_topic_views import COMPACTED, removed_below, trim

Fresh = Callable[[str], str]
NAMES = {"search": "shop.search", "delta": "shop.lake"}


@pytest.fixture(params=list(NAMES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(kind: str, cluster: Cluster, fresh: Fresh, tmp_path: Path) -> Shop:
    return shop(kind, cluster, tmp_path, fresh("orders"))


def shop(kind: str, cluster: Cluster, home: Path, name: str, **configs: str) -> Shop:
    def look(view: str) -> dict[str, Any] | None:
        try:
            found = (
                look_at_search(home / NAMES[kind], view)
                if kind == "search"
                else look_at_delta(home / NAMES[kind] / view)
            )
        except (OSError, ValueError, DeltaError):
            # Somebody is at work on it.
            return None
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    cluster.ensure_topic(name, 1, configs)
    return Shop(cluster, home, name, Search() if kind == "search" else Delta(), look)


def opened(kind: str, path: Path) -> SearchStore | DeltaStore:
    return SearchStore(path, "sales") if kind == "search" else DeltaStore(path, "sales")


def catalogs(kind: str, path: Path, view: str) -> Path:
    return path / view / "catalog" if kind == "search" else path / "_headrace" / view / "catalog"


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file grows beyond it, of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Gone for a while


@pytest.mark.parametrize("how", ["its disk is not mounted", "something is in its place"])
def test_a_folder_that_is_gone_for_a_while_is_waited_for(
    kind: str, made: Shop, tmp_path: Path, how: str
) -> None:
    path, away = tmp_path / NAMES[kind], tmp_path / "away"
    if "mounted" in how:
        (tmp_path / "disk").mkdir()
        path.symlink_to(tmp_path / "disk")
    made.write(("a", 1, "one"))
    with made.following() as follower:
        made.expect({"a": ("a", 1, "one")})
        if "mounted" in how:
            (tmp_path / "disk").rename(away)
        else:
            path.rename(away)
            path.touch()
        made.write(("b", 2, "two"))
        until(lambda: str(path) in follower.status.reason, "that it waits", timeout_s=120)
        if "mounted" in how:
            until(lambda: "is not there" in follower.status.reason, "what is missing", timeout_s=120)
            away.rename(tmp_path / "disk")
        else:
            path.unlink()
            away.rename(path)
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        assert follower.status.rebuilds == 1
    assert any("waits" in line for line in made.told)


def test_an_older_copy_that_is_put_back_file_by_file_catches_up(
    kind: str, made: Shop, tmp_path: Path
) -> None:
    """From before the follower was started: it finds somebody else's name in its own folder."""
    path = tmp_path / NAMES[kind]
    made.write(("a", 1, "one"))
    with made.following():
        made.expect({"a": ("a", 1, "one")})
    shutil.copytree(path, tmp_path / "kept")
    with made.following():
        made.write(("b", 2, "two"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        for one in [one for one in path.rglob("*") if one.is_file()]:
            one.unlink(missing_ok=True)
        shutil.copytree(tmp_path / "kept", path, dirs_exist_ok=True)
        made.write(("c", 3, "three"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})


def test_what_a_removal_has_not_yet_reached_is_not_somebody_else_s(kind: str, tmp_path: Path) -> None:
    with contextlib.closing(opened(kind, tmp_path)) as store:
        hand = Hand(store)
        hand.serve()
        hand.apply(changes(SHAPE, ("a", 1)))
    shutil.rmtree(catalogs(kind, tmp_path, "sales"))
    with contextlib.closing(opened(kind, tmp_path)) as store:
        Hand(store).serve()
        assert list(store.rows()) == []


# Full


def test_a_follower_outlasts_a_full_disk_however_often_it_tries(
    kind: str, made: Shop, tmp_path: Path
) -> None:
    """There is room for a note of who it is, and for nothing else."""
    made.write(("a", 1, "one"))
    with made.following() as follower:
        made.expect({"a": ("a", 1, "one")})
        with room_for(600):
            made.write(("b", 2, "two"))
            until(lambda: follower.status.state == "waiting", "that it waits", timeout_s=120)
            until(lambda: follower._tries > 3, "more tries", timeout_s=120)
            # The one that is served, and what it is in; for a moment also that of the try under way.
            until(
                lambda: len(_folders(tmp_path / NAMES[kind])) <= 2, "that what was tried goes", timeout_s=120
            )
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        assert follower.status.rebuilds == 1
    assert sum("waits" in line for line in made.told) == 1


def _folders(place: Path) -> list[Path]:
    return [one for one in place.rglob("*-*") if one.is_dir()]


def test_a_large_batch_without_room_is_tried_again(kind: str, tmp_path: Path) -> None:
    """Files are written while rows are added, and what fails then is heard of later."""
    rows = [(f"k{number}" + "x" * 3_000, number) for number in range(2_000)]
    with contextlib.closing(opened(kind, tmp_path)) as store:
        hand = Hand(store)
        hand.serve()
        with room_for(2_000), pytest.raises(StoreFull):
            hand.apply(changes(SHAPE, *rows))
    with contextlib.closing(opened(kind, tmp_path)) as store:
        again = Hand(store)
        again.apply(changes(SHAPE, *rows))
        assert sum(1 for _ in store.rows()) == 2_000


# The log has forgotten


def test_a_follower_that_was_away_while_deletions_expired_builds_again(
    kind: str, cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("orders")
    made = shop(kind, cluster, tmp_path, name, **COMPACTED, **{"delete.retention.ms": "0"})
    made.write(("a", 1, ""), ("b", 1, ""))
    with made.following():
        made.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
    made.write(("a", None, ""))
    for number in range(30):
        made.write(("fill", number, "x" * 700))
    until(lambda: removed_below(cluster, name) > 2, "the deletion is gone", pause_s=0.05)
    with made.following() as follower:
        made.expect({"b": ("b", 1, ""), "fill": ("fill", 29, "x" * 700)})
        assert follower.status.rebuilds == 1
    assert any("deletions" in line for line in made.told)


def test_a_follower_whose_place_was_deleted_builds_from_what_is_left_and_says_so(
    kind: str, cluster: Cluster, made: Shop
) -> None:
    made.write(("a", 1, ""), ("b", 1, ""))
    with made.following():
        made.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
    made.write(("c", 1, ""), ("d", 1, ""))
    trim(cluster, made.topic, 3)
    with made.following() as follower:
        made.expect({"d": ("d", 1, "")})
        assert follower.status.rebuilds == 1
    assert any("records 2 to 2" in line for line in made.told)


# The catalog


def test_a_catalog_that_goes_back_is_another(kind: str, tmp_path: Path) -> None:
    with contextlib.closing(opened(kind, tmp_path)) as store:
        store.take("one", 1)
        folder = catalogs(kind, tmp_path, "sales")
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        catalog = CatalogFolder(folder, "sales")
        store.take("two", 1)
        assert catalog.read().owner == "two"
        for path in folder.iterdir():
            path.unlink()
        with pytest.raises(StoreReplaced):
            catalog.read()
        for name, data in kept.items():
            # Under a higher number, as where others were made meanwhile.
            (folder / f"{int(name[:20]) + 7:020}.json").write_bytes(data)
        with pytest.raises(StoreReplaced, match="epoch 1"):
            catalog.read()


def test_what_a_catalog_names_is_on_the_disk_before_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(opened(kind, tmp_path)) as store:
        hand = Hand(store)
        hand.begin()
        hand.apply(changes(SHAPE, ("a", 1)), Part.BUILDING)
        before = {one.stat().st_ino for one in tmp_path.rglob("*")}
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
        store.take("a successor", 1)
        monkeypatch.undo()
        (named,) = {json.loads(max(catalogs(kind, tmp_path, "sales").glob("*.json")).read_text())["building"]}
        folder = catalogs(kind, tmp_path, "sales").parent / named
        made = [one for one in folder.rglob("*") if not one.name.startswith(".tantivy")]
        needed = {one.stat().st_ino for one in made} - before | {folder.stat().st_ino}
        assert needed <= set(order[: order.index(0)])
