"""What a token allows: an action on things of a kind, by name or by the beginning of one.

    read:view:revenue      read:view:shop-*      read:view:*
    read:topic:orders      write:topic:orders
    read:operations        metrics, and how far each view is
    admin                  everything

Kinds that come later are added to ``ACTIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError

__all__ = [
    "ACTIONS",
    "ADMIN",
    "OPERATIONS",
    "PUBLIC",
    "READ_TOPIC",
    "READ_VIEW",
    "WRITE_TOPIC",
    "Scope",
    "parse_scope",
]

ADMIN = "admin"
READ_VIEW = "read:view"
READ_TOPIC = "read:topic"
WRITE_TOPIC = "write:topic"
OPERATIONS = "read:operations"
PUBLIC = ""
"""Needs no token."""

ACTIONS = {READ_VIEW: True, READ_TOPIC: True, WRITE_TOPIC: True, OPERATIONS: False, ADMIN: False}
"""Whether a name belongs to it."""


@dataclass(frozen=True, slots=True)
class Scope:
    action: str
    name: str = ""
    """May end in ``*``."""

    def allows(self, action: str, name: str = "") -> bool:
        if self.action == ADMIN:
            return True
        if self.action != action:
            return False
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return self.name == name

    def __str__(self) -> str:
        return f"{self.action}:{self.name}" if self.name else self.action


def parse_scope(text: str) -> Scope:
    for action, named in ACTIONS.items():
        if named and text.startswith(f"{action}:"):
            name = text[len(action) + 1 :]
            if name and "*" not in name[:-1] and name.isascii() and name.isprintable():
                return Scope(action, name)
        elif not named and text == action:
            return Scope(action)
    raise ConfigError(
        f"{text!r} is not a scope",
        hint="one of "
        + ", ".join(f"{one}:NAME" if named else one for one, named in ACTIONS.items())
        + "; a name may end in *",
    )
