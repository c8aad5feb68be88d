"""Which names a view may have: those of topics, with room for ``.dead`` behind it. No name becomes part of a path."""

from __future__ import annotations

import re

from headrace.views.errors import NameRefused

__all__ = ["CHARS_MAX", "expect_view_name"]

CHARS_MAX = 249 - len(".dead")
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")


def expect_view_name(name: str) -> None:
    if name in (".", "..") or not _ALLOWED.fullmatch(name) or len(name) > CHARS_MAX:
        raise NameRefused(
            f"{name[:CHARS_MAX]!r} cannot name a view",
            hint=f"1 to {CHARS_MAX} ASCII letters, digits, '.', '_' and '-', and neither '.' nor '..'",
        )
