"""Which names a topic may have.

The rules are Kafka's, so that a topic made here can be made there: 1 to 249 ASCII letters, digits, dots,
underscores and hyphens, and neither ``.`` nor ``..``. Names that differ only by dot against underscore
collide (Kafka's metrics write both as an underscore), names that differ by case do not. No name ever
becomes part of a path: files are named by topic id.
"""

from __future__ import annotations

import re

__all__ = ["NAME_CHARS_MAX", "RESERVED", "collision_key", "is_internal", "name_fault"]

NAME_CHARS_MAX = 249
RESERVED = "__cluster_metadata"

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")


def name_fault(name: str) -> str | None:
    """Why ``name`` cannot name a topic, or ``None`` if it can."""
    if not name:
        return "a topic name cannot be empty"
    if name in (".", ".."):
        return f"'{name}' cannot be a topic name"
    if len(name) > NAME_CHARS_MAX:
        return f"a topic name has at most {NAME_CHARS_MAX} characters, this one has {len(name)}"
    if _ALLOWED.fullmatch(name) is None:
        return f"topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Equal for names that may not exist side by side."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Whether Kafka keeps its own state under this name; clients hide such topics and may not write to
    them.
    """
    return name in _INTERNAL
