"""All views that a token may read."""

from __future__ import annotations

import msgspec

from headrace.remote.session import Described

__all__ = ["ViewList"]


class ViewList(msgspec.Struct, frozen=True):
    app: str
    views: list[Described]
