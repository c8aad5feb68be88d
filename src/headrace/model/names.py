"""Which names an app and its parts may have.

They become names of topics, so the rules are Kafka's: 1 to 249 ASCII letters, digits, dots, underscores and hyphens,
and neither ``.`` nor ``..``. They also become names of files and of SQLite's tables, where case may not count; and the
log refuses two topics that differ only by dot against underscore. So names that differ by nothing else are twins.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["NAME_CHARS_MAX", "name_fault", "table_fault", "twin_key"]

NAME_CHARS_MAX = 249

_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")
_KAFKAS_OWN = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


def name_fault(name: Any) -> str | None:
    """Why ``name`` cannot be one, or None if it can."""
    if not isinstance(name, str):
        return f"a name is text, and {name!r} is not"
    if not name:
        return "a name cannot be empty"
    if len(name) > NAME_CHARS_MAX:
        return f"{name[:20]}… has {len(name)} characters, and a name has at most {NAME_CHARS_MAX}"
    if name in (".", ".."):
        return f"{name!r} is a place in a file system, not a name"
    if _ALLOWED.fullmatch(name) is None:
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    if name in _KAFKAS_OWN:
        return f"under {name!r} Kafka keeps its own state"
    return None


def table_fault(name: str) -> str | None:
    """Why a table of a store cannot have a name that is otherwise allowed."""
    if name.lower().startswith("sqlite_"):
        return f"names like {name!r} are SQLite's own"
    if name.lower().startswith("_headrace"):
        return f"names like {name!r} are kept for what Headrace itself notes in a store"
    return None


def twin_key(name: str) -> str:
    """Equal for names that cannot exist side by side everywhere that they are used."""
    return name.lower().replace(".", "_")
