"""Views as full-text indexes, for faults."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from bench.faults.store_folder import FolderKind
from bench.faults.store_place import Seen
from headrace.views.errors import StoreReplaced

__all__ = ["SearchKind"]


class SearchKind(FolderKind):
    name = "search"

    def product(self) -> type[Any]:
        from headrace.views.search.store import SearchStore

        return SearchStore

    def fencing(self) -> ModuleType:
        from headrace.views.search import store

        return store

    def no_fence(self, product: type[Any]) -> None:
        """Also: whoever comes writes into the folder that there is, past the library's lock, upon whatever is in it by
        then. One who kept what it had opened before would fail, for want of files that its successor has removed.
        """
        from headrace.views.search.writing import IndexWriting

        super().no_fence(product)

        def same(store: Any, now: Any, part: Any) -> str:
            return str(now.folder(part))

        def anew(store: Any, folder: Path) -> IndexWriting:
            store._writings.pop(folder.name, None)
            (folder / ".tantivy-writer.lock").unlink(missing_ok=True)
            return store._writings.setdefault(folder.name, IndexWriting.of(folder))  # type: ignore[no-any-return]

        product._copied = same
        product._writing = anew
        IndexWriting.is_as_left = lambda _: True  # type: ignore[method-assign]

    def no_position(self, product: type[Any]) -> None:
        """Also: an index that is not as it was left is written on."""
        super().no_position(product)
        standing = product._standing

        def whatever_is_there(store: Any, now: Any, part: Any) -> Any:
            try:
                return standing(store, now, part)
            except StoreReplaced:
                return standing(store, now, part)

        product._standing = whatever_is_there

    def look(self, path: Path, view: str) -> Seen | None:
        from tests.contract.see_search import look_at_search

        try:
            found = look_at_search(path, view)
        except (OSError, ValueError):
            return None
        if found is None:
            return None
        said, rows = found
        position = said["position"]
        return (
            position["generation"],
            position["batch"],
            {row["product"]: tuple(row.values()) for row in rows},
        )
