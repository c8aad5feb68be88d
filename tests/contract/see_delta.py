"""Delta tables, seen by deltalake and the log that Delta documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from headrace.model.store import Delta
from headrace.model.store import Store as Declared
from headrace.views.delta.store import DeltaStore
from headrace.views.store import Store
from tests.contract.see import See

__all__ = ["SeeDelta", "look_at_delta"]


class SeeDelta(See):
    dear = True
    histories = 12

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.lake"

    def open(self, view: str = "sales") -> Store:
        return DeltaStore(self.path, view)

    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        found = look_at_delta(self.path / view)
        if found is None:
            return None
        said, rows = found
        names = [one["name"] for one in json.loads(said["shape"])["fields"]]
        key = [said["columns"][names.index(name)] for name in json.loads(said["shape"])["key"]]
        rows.sort(key=lambda row: [row[name] for name in key])
        return said["position"]["batch"], [tuple(row[name] for name in said["columns"]) for row in rows]

    def declared(self) -> Declared:
        return Delta()

    def opener(self) -> str:
        return f"headrace.views.delta.store:DeltaStore(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """The test's folder is all there is."""


def look_at_delta(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """What the commit of a version says, and the rows of that version; None if there is no table."""
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return None
    for line in (path / "_delta_log" / f"{table.version():020}.json").read_bytes().splitlines():
        info = json.loads(line).get("commitInfo")
        if info is not None:
            return json.loads(info["headrace"]), table.to_pyarrow_table().to_pylist()
    raise AssertionError(f"version {table.version()} of {path} has no commitInfo")
