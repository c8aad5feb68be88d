"""Writes one view as a full-text index.

    <app>.search/<view>/catalog/0000…7.json   names the owner and the folder of each part (``headrace.stores.catalog``)
    <app>.search/<view>/7-5f0c…/              an index of tantivy (``headrace.stores.search.layout``)

**Rows match the position**: the position is a document of the index, and a commit of the index replaces one file.

**A swap is atomic**: it changes the folders that the catalog names, and moves no files. So it takes the same time for
any number of rows, and so does switching back.

**Only the owner writes**: a follower that claims the view copies each index into its own folder. The copy shares files
with the previous folder. The follower then names its folders in the catalog, atomically, and this fails if another
follower was faster. A replaced follower might still write into its old folder, which is not in use any more. It reads
the catalog after every commit, finds another owner, and fails. So a stopped process does not block others. A stopped
process can hold tantivy's own lock, but only in its old folder.

A crash leaves the catalog before or after the change, and an index at the commit before or after. It can leave folders
that the catalog does not name. The next change of the catalog removes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import tantivy

from headrace.files import DIR_MODE, make_private_dir
from headrace.stores.catalog import (
    Catalog,
    CatalogFolder,
    CatalogWriter,
    is_folder_name,
    new_folder_name,
    version_of_folder,
)
from headrace.stores.errors import PositionMoved, StoreForeign, StoreReplaced
from headrace.stores.file_errors import translate_errors, translate_os_errors
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row, key_order
from headrace.stores.search.layout import (
    CATALOG,
    KEY,
    ROW,
    STATE_KEY,
    TOKENIZER,
    Documents,
    StateDocument,
    analyzer,
    copy_index,
    opstamp_of,
    searched_columns,
)
from headrace.stores.search.reader import Snapshot, open_index
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    check_droppable,
    check_fence,
    check_kept,
    check_position,
    check_view_name,
    next_owner,
)

__all__ = ["IndexWriter", "SearchWriter"]

_YIELDS_MAX = 5
_HEAP_BYTES = 64_000_000
# Each thread writes one segment per commit, so more threads would make small batches expensive.
_THREADS = 1


class SearchWriter(CatalogWriter):
    """``fields`` are the columns to index. If it is empty, all text columns are indexed."""

    def __init__(self, path: Path, view: str, fields: Sequence[str] = ()) -> None:
        check_view_name(view)
        self.view = view
        self.path = path
        self._fields = tuple(fields)
        self._view_dir = path / view
        _check_ours(self._view_dir)
        self._catalog = CatalogFolder(self._view_dir / CATALOG, view)
        self._catalog.create()
        self._indexes: dict[str, IndexWriter] = {}
        self._copied_opstamps: dict[Path, int] = {}
        """The last commit of each index at the time of its copy."""

    def close(self) -> None:
        self._indexes.clear()

    # Ownership

    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        self.close()
        claims: list[Owner] = []

        def update(current: Catalog) -> Catalog:
            owner = next_owner(self.view, name, current.current_owner, before)
            claims.append(owner)
            self._copied_opstamps.clear()
            serving, building = self._copy(current, Part.SERVING), self._copy(current, Part.BUILDING)
            return msgspec.structs.replace(
                current,
                epoch=owner.epoch,
                owner=owner.name,
                taken_ms=now_ms,
                rebuild_requests=current.rebuild_requests + self._needs_other_columns(serving, building),
                serving=serving,
                building=building,
                kept=self._copy(current, Part.KEPT),
            )

        # If the previous owner commits during the copy, copy again, but only a few times.
        self._change(update, lambda: len(claims) > _YIELDS_MAX or self._are_copies_current())
        return claims[-1]

    def _are_copies_current(self) -> bool:
        """Return False if an index was committed after its copy. Otherwise readers would see its new rows disappear."""
        try:
            return all(opstamp_of(folder) == stamp for folder, stamp in self._copied_opstamps.items())
        except FileNotFoundError:
            return False

    def _copy(self, current: Catalog, part: Part) -> str:
        """Copy the index to a new folder. Return the folder's name, or an empty text if the index does not exist."""
        if not current.folder(part):
            return ""
        old, new = self._view_dir / current.folder(part), new_folder_name(current)
        with translate_errors(old):
            try:
                copy_index(old, self._view_dir / new)
                self._copied_opstamps[old] = opstamp_of(self._view_dir / new)
            except BaseException as error:
                shutil.rmtree(self._view_dir / new, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    # Another version of the catalog has replaced the folder, or a user removed it.
                    return ""
                raise
        return new

    def _needs_other_columns(self, *folders: str) -> bool:
        """Return whether the newest index has other search columns than the view declares."""
        for document in (
            Snapshot(self._view_dir / name).state_document for name in reversed(folders) if name
        ):
            declared = self._fields or searched_columns(self.view, document.state.schema, ())
            return list(declared) != document.searched
        return False

    def _change(
        self, update: Callable[[Catalog], Catalog], still_valid: Callable[[], bool] = lambda: True
    ) -> Catalog:
        catalog = self._catalog.change(update, still_valid)
        self._remove_orphans(catalog)
        return catalog

    def _remove_orphans(self, catalog: Catalog) -> None:
        """Remove folders that this version does not name and that no later version can name."""
        current_names = {catalog.folder(part) for part in Part}
        with translate_os_errors(self._view_dir):
            paths = list(self._view_dir.iterdir())
        for path in paths:
            if 0 <= version_of_folder(path.name) <= catalog.number and path.name not in current_names:
                self._indexes.pop(path.name, None)
                shutil.rmtree(path, ignore_errors=True)

    # State and rows

    def state(self, part: Part) -> ViewState | None:
        return self._state(self._catalog.read(), part)

    def _state(self, catalog: Catalog, part: Part) -> ViewState | None:
        folder = catalog.folder(part)
        if not folder:
            return None
        index = self._indexes.get(folder)
        with translate_errors(self._view_dir / folder):
            if index is not None and index.state_document is not None:
                if index.is_unchanged():
                    return index.state_document.state
                del self._indexes[folder]
                raise StoreReplaced(
                    f"the index in {self._view_dir / folder} is not at the last commit of its follower",
                    hint="the store was probably restored from a backup; the follower continues from its position",
                )
            return Snapshot(self._view_dir / folder).state

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        folder = self._catalog.read().folder(part)
        if not folder:
            raise PositionMoved(f"view {self.view!r} has no {part} index in {self._view_dir}")
        snapshot = Snapshot(self._view_dir / folder)
        yield from sorted(snapshot.rows(), key=key_order(snapshot.state.schema))

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        searched = searched_columns(self.view, schema, self._fields)
        created: list[ViewState] = []

        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            folder = new_folder_name(current)
            document = StateDocument(
                position, schema.to_json(), current.rebuild_requests, reason, list(searched)
            )
            with translate_errors(self._view_dir / folder):
                try:
                    self._indexes[folder] = IndexWriter.create(self._view_dir / folder, document)
                except BaseException:
                    shutil.rmtree(self._view_dir / folder, ignore_errors=True)
                    raise
            created[:] = [document.state]
            return msgspec.structs.replace(current, building=folder)

        self._change(update)
        return created[0]

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        catalog = self._catalog.read()
        self._check(catalog, part, before, fence)
        if after.generation != fence.generation:
            check_fence(self.view, fence, fence.owner, after.generation)
        folder = self._view_dir / catalog.folder(part)
        try:
            with translate_errors(folder):
                self._index(folder).apply(changes, after)
        except (OverflowError, UnicodeError):
            # These errors occur before the first write.
            raise
        except BaseException:
            self._indexes.pop(folder.name, None)
            # The folder might be missing because another follower claimed the view, or because a user removed it.
            check_fence(self.view, fence, self._catalog.read().current_owner, None)
            raise
        check_fence(self.view, fence, self._catalog.read().current_owner, None)

    def _index(self, folder: Path) -> IndexWriter:
        if folder.name not in self._indexes:
            self._indexes[folder.name] = IndexWriter.open(folder)
        return self._indexes[folder.name]

    def _check(self, catalog: Catalog, part: Part, before: Position | None, fence: Fence) -> None:
        """Raise unless the fence is current and the part is at the position ``before``."""
        state = self._state(catalog, part)
        position = state.position if state else None
        check_fence(self.view, fence, catalog.current_owner, position.generation if position else None)
        check_position(self.view, str(self._view_dir), before, position)

    def swap(self, fence: Fence, keep: bool = False) -> None:
        def update(current: Catalog) -> Catalog:
            self._check(current, Part.BUILDING, None, fence)
            kept = current.serving if keep and self._has_serving_index(current) else current.kept
            return msgspec.structs.replace(current, serving=current.building, building="", kept=kept)

        self._change(update)

    def swap_back(self, fence: Fence) -> None:
        def update(current: Catalog) -> Catalog:
            kept = self._state(current, Part.KEPT)
            position = kept.position if kept else None
            check_kept(self.view, str(self._view_dir), fence, current.current_owner, position)
            if not self._has_serving_index(current):
                return msgspec.structs.replace(current, serving=current.kept, kept="")
            serving = self._state(current, Part.SERVING)
            if kept is not None and serving is not None and kept.rebuild_requests < serving.rebuild_requests:
                self._fulfil_requests(current.kept, serving.rebuild_requests)
            return msgspec.structs.replace(current, serving=current.kept, kept=current.serving)

        self._change(update)

    def _fulfil_requests(self, folder: str, requests: int) -> None:
        """Let the index fulfil the rebuild requests up to this number."""
        with translate_errors(self._view_dir / folder):
            self._index(self._view_dir / folder).fulfil_requests(requests)

    def _has_serving_index(self, catalog: Catalog) -> bool:
        """Return False if the index does not exist, also if a user removed it."""
        folder = self._view_dir / catalog.serving
        with translate_os_errors(folder):
            return bool(catalog.serving) and (folder / "meta.json").exists()

    def drop(self, part: Part, fence: Fence) -> None:
        check_droppable(self.view, part)

        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            if part is Part.KEPT:
                return msgspec.structs.replace(current, kept="")
            return msgspec.structs.replace(current, building="")

        self._change(update)


def _check_ours(view_dir: Path) -> None:
    """Raise if the folder contains anything that no follower created."""
    with translate_os_errors(view_dir):
        if not view_dir.is_dir() or (view_dir / CATALOG).is_dir():
            return
        if not all(is_folder_name(path.name) for path in view_dir.iterdir()):
            raise StoreForeign(
                f"{view_dir} contains files that no follower created",
                hint="choose another folder for the store; this folder was not changed",
            )


class IndexWriter:
    """Writes one index. Only this follower uses the folder."""

    def __init__(
        self, folder: Path, index: tantivy.Index, document: StateDocument | None, documents: Documents
    ) -> None:
        self.folder = folder
        # This object runs no queries, so its reader does not need to reload after commits.
        index.config_reader("manual")
        self._writer = index.writer(_HEAP_BYTES, _THREADS)
        self._documents = documents
        self._opstamp = opstamp_of(folder)
        self.state_document = document

    @classmethod
    def create(cls, folder: Path, document: StateDocument) -> IndexWriter:
        make_private_dir(folder.parent)
        folder.mkdir(DIR_MODE)
        documents = Documents(document.state.schema, document.searched)
        index = tantivy.Index(documents.index_schema(), str(folder))
        index.register_tokenizer(TOKENIZER, analyzer())
        writer = cls(folder, index, None, documents)
        writer._commit(document)
        return writer

    @classmethod
    def open(cls, folder: Path) -> IndexWriter:
        snapshot = Snapshot(folder)
        return cls(folder, open_index(folder), snapshot.state_document, snapshot.documents)

    def is_unchanged(self) -> bool:
        """Return whether the last commit is our own. A merge of segments does not change the stamp."""
        return self._opstamp == opstamp_of(self.folder)

    def apply(self, changes: Changes, after: Position) -> None:
        assert self.state_document is not None
        term_of = self._documents.term
        deleted = [term_of(key) for key in changes.deletes]
        upserted = [self._documents.document(row) for row in changes.upserts]
        delete, add = self._writer.delete_documents_by_term, self._writer.add_document
        for term in deleted:
            delete(KEY, term)
        for term, document in upserted:
            delete(KEY, term)
            add(document)
        self._commit(msgspec.structs.replace(self.state_document, position=after))

    def fulfil_requests(self, requests: int) -> None:
        assert self.state_document is not None
        self._commit(msgspec.structs.replace(self.state_document, rebuild_requests=requests))

    def _commit(self, state_document: StateDocument) -> None:
        document = tantivy.Document()
        document.add_text(KEY, STATE_KEY)
        document.add_bytes(ROW, msgspec.json.encode(state_document))
        self._writer.delete_documents_by_term(KEY, STATE_KEY)
        self._writer.add_document(document)
        self._opstamp = self._writer.commit()
        self.state_document = state_document
