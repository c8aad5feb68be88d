"""Delta tables of views, read with deltalake and by Delta's documented log."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from faults.patch import patch
from faults.stores.folder import FolderFaults
from faults.stores.port import Snapshot, StoreFixture
from headrace.model.store import Delta
from headrace.model.store import Store as Declared
from headrace.stores.delta import writer
from headrace.stores.delta.table import LakeTable
from headrace.stores.delta.writer import DeltaWriter
from headrace.stores.errors import StoreReplaced
from headrace.stores.writer import StoreWriter

__all__ = ["FAULTS", "FIXTURE", "DeltaFaults", "DeltaFixture", "read_delta_table"]


class DeltaFixture(StoreFixture):
    is_slow = True
    histories = 8

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.lake"

    def open(self, view: str = "sales") -> StoreWriter:
        return DeltaWriter(self.path, view)

    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        content = read_delta_table(self.path / view)
        if content is None:
            return None
        state, rows = content
        schema, columns = json.loads(state["shape"]), state["columns"]
        names = [field["name"] for field in schema["fields"]]
        key = [columns[names.index(name)] for name in schema["key"]]
        rows.sort(key=lambda row: [row[name] for name in key])
        return state["position"]["batch"], [tuple(row[name] for name in columns) for row in rows]

    def declared(self) -> Declared:
        return Delta()

    def opener(self) -> str:
        return f"headrace.stores.delta.writer:DeltaWriter(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """Everything is in ``home``; nothing to remove."""


def read_delta_table(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return the view's state in the newest version's commit, and that version's rows, or None if no table exists."""
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return None
    for line in (path / "_delta_log" / f"{table.version():020}.json").read_bytes().splitlines():
        info = json.loads(line).get("commitInfo")
        if info is not None:
            return json.loads(info["headrace"]), table.to_pyarrow_table().to_pylist()
    raise AssertionError(f"version {table.version()} of {path} has no commitInfo")


class DeltaFaults(FolderFaults):
    name = "lake"

    def store_class(self) -> type[Any]:
        return DeltaWriter

    def fencing_module(self) -> ModuleType:
        return writer

    def remove_position_check(self, store_class: type[Any]) -> None:
        """Also let a writer continue a table that another writer has changed."""
        super().remove_position_check(store_class)
        refresh = LakeTable.refresh

        def reload(table: Any) -> None:
            try:
                refresh(table)
            except StoreReplaced:
                table.__init__(table.folder)

        patch(LakeTable, "refresh", reload)

    def read_snapshot(self, path: Path, view: str) -> Snapshot | None:
        try:
            content = read_delta_table(path / view)
        except (OSError, DeltaError):
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


FIXTURE = DeltaFixture
FAULTS = DeltaFaults()
