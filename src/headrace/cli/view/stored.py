"""What the stores of an app have of its views, without a broker and without changing anything."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.view import View
    from headrace.views.reader import Known

__all__ = ["known_parts", "state_of"]


def known_parts(app: App, view: View, data: Path) -> dict[str, Known]:
    """By part; empty where nothing has followed the view yet."""
    from headrace.views.opening import open_reader

    reader = open_reader(view, app.name, data)
    if reader is None:
        return {}
    with contextlib.closing(reader):
        return {one.part.value: one for one in reader.known_of(view.name)}


def state_of(parts: dict[str, Known]) -> str:
    if "building" in parts:
        return "rebuilding" if "serving" in parts else "building"
    return "serving" if parts else "not built"
