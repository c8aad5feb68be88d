"""What the stores of an app have of its views, without a broker and without changing anything."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.view import View
    from headrace.views.sqlite_reading import Known

__all__ = ["known_parts", "state_of"]


def known_parts(app: App, view: View, data: Path) -> dict[str, Known]:
    """By part; empty where nothing has followed the view yet."""
    from headrace.views.opening import file_of
    from headrace.views.sqlite_reading import SqliteReader

    path = file_of(view, app.name, data)
    if not path.exists():
        return {}
    with contextlib.closing(SqliteReader(path)) as reader:
        return {one.part.value: one for one in reader.known() if one.view == view.name}


def state_of(parts: dict[str, Known]) -> str:
    if "building" in parts:
        return "rebuilding" if "serving" in parts else "building"
    return "serving" if parts else "not built"
