"""Full-text indexes, seen by tantivy and the files that are documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tantivy

from headrace.model.store import Search
from headrace.model.store import Store as Declared
from headrace.views.search.store import SearchStore
from headrace.views.store import Store
from tests.contract.see import See

__all__ = ["SeeSearch", "look_at_search"]


class SeeSearch(See):
    dear = True
    histories = 12

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.search"

    def open(self, view: str = "sales") -> Store:
        return SearchStore(self.path, view)

    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        found = look_at_search(self.path, view)
        if found is None:
            return None
        standing, rows = found
        names = [one["name"] for one in json.loads(standing["shape"])["fields"]]
        key = [names.index(name) for name in json.loads(standing["shape"])["key"]]
        told = [tuple(row[name] for name in names) for row in rows]
        return standing["position"]["batch"], sorted(told, key=lambda row: [row[at] for at in key])

    def declared(self) -> Declared:
        return Search()

    def opener(self) -> str:
        return f"headrace.views.search.store:SearchStore(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """The test's folder is all there is."""


def look_at_search(path: Path, view: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """What the document ``standing`` says, and the rows beside it; None if nothing serves."""
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
    found = searcher.search(tantivy.Query.all_query(), limit=max(1, searcher.num_docs)).hits
    told = [json.loads(searcher.doc(address).get_first("_headrace_row")) for _, address in found]
    (standing,) = [one for one in told if set(one) == {"position", "shape", "wish", "reason", "searched"}]
    return standing, [one for one in told if one is not standing]


def _serving(home: Path) -> Path | None:
    while True:
        numbers = sorted((home / "catalog").glob("*.json")) if home.exists() else []
        if not numbers:
            return None
        try:
            named = json.loads(numbers[-1].read_text())["serving"]
        except FileNotFoundError:
            continue
        return home / named if named else None
