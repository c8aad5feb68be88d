"""A view as a full-text index: rows that can be read by their words.

    <app>.search/<view>/catalog/0000…7.json   who may write, and which folder serves (``headrace.views.catalog``)
    <app>.search/<view>/7-5f0c…/              an index of tantivy

**Rows and position agree**, since the position is a document of the index (``snapshot``), and an index is committed by
replacing one file. **Nobody else writes**: a follower that takes the view makes a folder of its own, of which the files
are shared with the one before (``copying``; they do not change once they are written), and names it in the catalog, in
one step that fails if another was faster. Whoever was replaced goes on writing into a folder that does not count, or
that is gone; it looks at the catalog behind every commit and is refused there. So a stopped process holds up nobody,
and tantivy's own lock, which it may hold for ever, is in a folder that nobody needs.

A kill leaves the catalog of before or after, and folders that no catalog names; the next one to change the catalog
removes those. It leaves an index at the commit of before or after: what was about to be committed is not in it.

A reader reads the catalog, opens the index, and reads the catalog again: if it is another, it begins anew. Folders that
served are removed at once; who has an index open reads on.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.views.catalog import Catalog, CatalogFolder, is_older, number_of, told
from headrace.views.changes import Changes
from headrace.views.errors import PositionMoved, StoreForeign, StoreReplaced
from headrace.views.file_troubles import told_as
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row, key_order
from headrace.views.search.copying import copy_index, opstamp_of
from headrace.views.search.fields import searched_of
from headrace.views.search.snapshot import Snapshot, Told
from headrace.views.search.writing import IndexWriting
from headrace.views.store import Fence, Owner, Part, Store, next_owner, refuse_stale

__all__ = ["CATALOG", "SearchStore"]

CATALOG = "catalog"
_GIVEN_WAY = 5
_OURS = re.compile(r"\d+-[0-9a-f]{12}")


class SearchStore(Store):
    """``fields`` are the columns whose words can be searched for; without them, all texts."""

    def __init__(self, path: Path, view: str, fields: Sequence[str] = ()) -> None:
        expect_view_name(view)
        self.view = view
        self.path = path
        self._fields = tuple(fields)
        self._home = path / view
        _expect_ours(self._home)
        self._catalog = CatalogFolder(self._home / CATALOG, view)
        self._catalog.make()
        self._writings: dict[str, IndexWriting] = {}
        self._opstamps: dict[Path, int] = {}
        """Of what was copied, the commits."""

    def close(self) -> None:
        self._writings.clear()

    # Who may write

    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        self.close()
        found: list[Owner] = []

        def make(now: Catalog) -> Catalog:
            owner = next_owner(self.view, name, now.who, before)
            found.append(owner)
            self._opstamps.clear()
            serving, building = self._copied(now, Part.SERVING), self._copied(now, Part.BUILDING)
            return msgspec.structs.replace(
                now,
                epoch=owner.epoch,
                owner=owner.name,
                taken_ms=now_ms,
                wish=now.wish + self._is_searched_otherwise(serving, building),
                serving=serving,
                building=building,
            )

        # Who is replaced may be busy: it is given way a few times, and not for ever.
        self._change(make, lambda: len(found) > _GIVEN_WAY or self._are_as_copied())
        return found[-1]

    def _are_as_copied(self) -> bool:
        """Whether nothing was committed since: who reads must not see it come and go."""
        try:
            return all(opstamp_of(folder) == one for folder, one in self._opstamps.items())
        except FileNotFoundError:
            return False

    def _copied(self, now: Catalog, part: Part) -> str:
        """The name of a folder of one's own with the same index; of one that is gone, none."""
        if not now.folder(part):
            return ""
        new = self._new_folder(now)
        with told_as(self._home / now.folder(part)):
            try:
                copy_index(self._home / now.folder(part), self._home / new)
                self._opstamps[self._home / now.folder(part)] = opstamp_of(self._home / new)
            except BaseException as error:
                shutil.rmtree(self._home / new, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    # Of a version that has been replaced meanwhile; or somebody has removed it.
                    return ""
                raise
        return new

    def _is_searched_otherwise(self, *folders: str) -> bool:
        """Whether other columns are to be searched than those that it was built for, and nothing is built for them."""
        for told_ in (Snapshot(self._home / one).told for one in reversed(folders) if one):
            wanted = self._fields or searched_of(self.view, told_.standing.shape, ())
            return list(wanted) != told_.searched
        return False

    def _new_folder(self, now: Catalog) -> str:
        return f"{now.number + 1}-{uuid.uuid4().hex[:12]}"

    def _change(
        self, make: Callable[[Catalog], Catalog], is_so: Callable[[], bool] = lambda: True
    ) -> Catalog:
        catalog = self._catalog.change(make, is_so)
        self._remove_lost(catalog)
        return catalog

    def _remove_lost(self, catalog: Catalog) -> None:
        """Folders that this version does not name, and that none to come can."""
        named = {catalog.serving, catalog.building}
        with told(self._home):
            found = list(self._home.iterdir())
        for path in found:
            if 0 <= number_of(path.name) <= catalog.number and path.name not in named:
                self._writings.pop(path.name, None)
                shutil.rmtree(path, ignore_errors=True)

    # What there is

    def standing(self, part: Part) -> Standing | None:
        return self._standing(self._catalog.read(), part)

    def _standing(self, catalog: Catalog, part: Part) -> Standing | None:
        folder = catalog.folder(part)
        if not folder:
            return None
        writing = self._writings.get(folder)
        with told_as(self._home / folder):
            if writing is not None and writing.told is not None:
                if writing.is_as_left():
                    return writing.told.standing
                del self._writings[folder]
                raise StoreReplaced(
                    f"the index in {self._home / folder} is not as its follower left it",
                    hint="was it restored from a backup? The view goes on from where the store is",
                )
            return Snapshot(self._home / folder).told.standing

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        folder = self._catalog.read().folder(part)
        if not folder:
            raise PositionMoved(f"view {self.view!r} has no {part} index in {self._home}")
        found = Snapshot(self._home / folder)
        yield from sorted(found.rows(), key=key_order(found.told.standing.shape))

    # What changes it

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        searched = searched_of(self.view, shape, self._fields)
        made: list[Standing] = []

        def make(now: Catalog) -> Catalog:
            refuse_stale(self.view, fence, now.who, None)
            serving = self._standing(now, Part.SERVING)
            if serving is not None and is_older(position, serving.position):
                refuse_stale(self.view, fence, now.who, serving.position.generation)
            folder = self._new_folder(now)
            said = Told(position, shape.tell(), now.wish, reason, list(searched))
            with told_as(self._home / folder):
                try:
                    self._writings[folder] = IndexWriting.made(self._home / folder, shape, searched, said)
                except BaseException:
                    shutil.rmtree(self._home / folder, ignore_errors=True)
                    raise
            made[:] = [said.standing]
            return msgspec.structs.replace(now, building=folder)

        self._change(make)
        return made[0]

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        catalog = self._catalog.read()
        self._expect(catalog, part, before, fence)
        if after.generation != fence.generation:
            refuse_stale(self.view, fence, fence.owner, after.generation)
        folder = self._home / catalog.folder(part)
        try:
            with told_as(folder):
                writing = self._writing(folder)
                writing.apply(changes, after)
        except (OverflowError, UnicodeError):
            # Found before anything was written.
            raise
        except BaseException:
            self._writings.pop(folder.name, None)
            # The folder may be gone because another has taken the view, or somebody has taken all of it away.
            refuse_stale(self.view, fence, self._catalog.read().who, None)
            raise
        refuse_stale(self.view, fence, self._catalog.read().who, None)

    def _writing(self, folder: Path) -> IndexWriting:
        if folder.name not in self._writings:
            self._writings[folder.name] = IndexWriting.of(folder)
        return self._writings[folder.name]

    def _expect(self, catalog: Catalog, part: Part, before: Position | None, fence: Fence) -> Position:
        """The part is as its follower left it, and the follower is the one that may write."""
        found = self._standing(catalog, part)
        position = found.position if found else None
        refuse_stale(self.view, fence, catalog.who, position.generation if position else None)
        if position is None or (before is not None and position != before):
            raise PositionMoved(
                f"view {self.view!r} in {self._home} is not where its follower left it",
                detail=f"left at {before}, found at {position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        return position

    def swap(self, fence: Fence) -> None:
        def make(now: Catalog) -> Catalog:
            self._expect(now, Part.BUILDING, None, fence)
            return msgspec.structs.replace(now, serving=now.building, building="")

        self._change(make)

    def drop_building(self, fence: Fence) -> None:
        def make(now: Catalog) -> Catalog:
            refuse_stale(self.view, fence, now.who, None)
            return msgspec.structs.replace(now, building="")

        self._change(make)

    # Wishes

    def ask_rebuild(self) -> None:
        self._catalog.change(lambda now: msgspec.structs.replace(now, wish=now.wish + 1))

    def wish(self) -> int:
        return self._catalog.read().wish


def _expect_ours(home: Path) -> None:
    """What is there was made by a follower, or is what is left of that, or nothing is there."""
    with told(home):
        if not home.is_dir() or (home / CATALOG).is_dir():
            return
        if not all(_OURS.fullmatch(path.name) for path in home.iterdir()):
            raise StoreForeign(
                f"{home} has something that no follower made",
                hint="name another folder for the store; this one was left as it is",
            )
