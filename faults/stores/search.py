"""Full-text indexes of views, read with tantivy and by the documented file format."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import tantivy

from faults.patch import patch
from faults.stores.folder import FolderFaults
from faults.stores.port import Snapshot, StoreFixture
from headrace.model.store import Search
from headrace.model.store import Store as Declared
from headrace.stores.errors import StoreReplaced
from headrace.stores.search import writer
from headrace.stores.search.writer import IndexWriter, SearchWriter
from headrace.stores.writer import StoreWriter

__all__ = ["FAULTS", "FIXTURE", "SearchFaults", "SearchFixture", "read_search_index"]


class SearchFixture(StoreFixture):
    is_slow = True
    histories = 8

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.search"

    def open(self, view: str = "sales") -> StoreWriter:
        return SearchWriter(self.path, view)

    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        content = read_search_index(self.path, view)
        if content is None:
            return None
        state, rows = content
        schema = json.loads(state["shape"])
        names = [field["name"] for field in schema["fields"]]
        key = [names.index(name) for name in schema["key"]]
        values = [tuple(row[name] for name in names) for row in rows]
        return state["position"]["batch"], sorted(values, key=lambda row: [row[index] for index in key])

    def declared(self) -> Declared:
        return Search()

    def opener(self) -> str:
        return f"headrace.stores.search.writer:SearchWriter(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """Everything is in ``home``; nothing to remove."""


def read_search_index(path: Path, view: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return the document with the view's state, and the rows, or None if no index is served."""
    while True:
        folder = _serving(path / view)
        if folder is None:
            return None
        try:
            searcher = tantivy.Index.open(str(folder)).searcher()
        except ValueError:
            if _serving(path / view) != folder:
                continue
            raise
        if _serving(path / view) == folder:
            break
    hits = searcher.search(tantivy.Query.all_query(), limit=max(1, searcher.num_docs)).hits
    documents = [json.loads(searcher.doc(address).get_first("_headrace_row") or "") for _, address in hits]
    (state,) = [row for row in documents if set(row) == {"position", "shape", "wish", "reason", "searched"}]
    return state, [row for row in documents if row is not state]


def _serving(home: Path) -> Path | None:
    while True:
        numbers = sorted((home / "catalog").glob("*.json")) if home.exists() else []
        if not numbers:
            return None
        try:
            serving = json.loads(numbers[-1].read_text())["serving"]
        except FileNotFoundError:
            continue
        return home / serving if serving else None


class SearchFaults(FolderFaults):
    name = "search"

    def store_class(self) -> type[Any]:
        return SearchWriter

    def fencing_module(self) -> ModuleType:
        return writer

    def remove_fence(self, store_class: type[Any]) -> None:
        """Also let any writer write into the existing folder, without the library's lock, on top of the current
        content. The writer opens the index each time, because an index opened before would miss files that a successor
        removed.
        """
        super().remove_fence(store_class)

        def same_folder(store: Any, now: Any, part: Any) -> str:
            return str(now.folder(part))

        def open_again(store: Any, folder: Path) -> IndexWriter:
            store._indexes.pop(folder.name, None)
            (folder / ".tantivy-writer.lock").unlink(missing_ok=True)
            return store._indexes.setdefault(folder.name, IndexWriter.open(folder))  # type: ignore[no-any-return]

        patch(store_class, "_copy", same_folder)
        patch(store_class, "_index", open_again)
        patch(IndexWriter, "is_unchanged", lambda _: True)

    def remove_position_check(self, store_class: type[Any]) -> None:
        """Also let a writer continue an index that another writer has changed."""
        super().remove_position_check(store_class)
        state = store_class._state

        def read_again(store: Any, now: Any, part: Any) -> Any:
            try:
                return state(store, now, part)
            except StoreReplaced:
                return state(store, now, part)

        patch(store_class, "_state", read_again)

    def read_snapshot(self, path: Path, view: str) -> Snapshot | None:
        try:
            content = read_search_index(path, view)
        except (OSError, ValueError):
            return None
        if content is None:
            return None
        state, rows = content
        position = state["position"]
        return (
            position["generation"],
            position["batch"],
            {row["product"]: tuple(row.values()) for row in rows},
        )


FIXTURE = SearchFixture
FAULTS = SearchFaults()
