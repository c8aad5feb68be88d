"""Views as full-text indexes, for faults."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from bench.faults.store_folder import FolderKind
from bench.faults.store_place import Seen

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
        """Also: whoever comes writes into the folder that there is, past the library's lock."""
        from headrace.views.search.writing import IndexWriting

        super().no_fence(product)

        def same(store: Any, now: Any, part: Any) -> str:
            folder: str = now.folder(part)
            (store._home / folder / ".tantivy-writer.lock").unlink(missing_ok=True)
            return folder

        product._copied = same
        IndexWriting.is_as_left = lambda _: True  # type: ignore[method-assign]

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
