"""Views as Delta tables, for faults."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from bench.faults.store_folder import FolderKind
from bench.faults.store_place import Seen
from headrace.views.errors import StoreReplaced

__all__ = ["DeltaKind"]


class DeltaKind(FolderKind):
    name = "lake"

    def product(self) -> type[Any]:
        from headrace.views.delta.store import DeltaStore

        return DeltaStore

    def fencing(self) -> ModuleType:
        from headrace.views.delta import store

        return store

    def no_position(self, product: type[Any]) -> None:
        """Also: a table that is not as it was left is written on."""
        from headrace.views.delta.table import LakeTable

        super().no_position(product)
        look = LakeTable.look

        def whatever_is_there(table: Any) -> None:
            try:
                look(table)
            except StoreReplaced:
                table.__init__(table.folder)

        LakeTable.look = whatever_is_there  # type: ignore[method-assign]

    def look(self, path: Path, view: str) -> Seen | None:
        from deltalake.exceptions import DeltaError

        from tests.contract.see_delta import look_at_delta

        try:
            found = look_at_delta(path / view)
        except (OSError, DeltaError):
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
