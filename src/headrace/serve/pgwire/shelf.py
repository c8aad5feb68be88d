"""The prepared statements, portals and cursors of one connection, by their names."""

from __future__ import annotations

from headrace.serve.pgwire.kept import Kept
from headrace.serve.pgwire.portal import Portal, Prepared
from headrace.serve.pgwire.sql_state import Trouble, Troubled

__all__ = ["NAME_BYTES_MAX", "Shelf"]

NAME_BYTES_MAX = 63
"""As for names in PostgreSQL."""


class Shelf:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._prepared: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}

    def put_statement(self, name: str, prepared: Prepared) -> None:
        _expect_short(name)
        try:
            self._kept.put("statement", name, prepared.size_bytes)
        except Exception:
            self._prepared.pop(name, None)
            raise
        self._prepared[name] = prepared

    def put_portal(self, name: str, portal: Portal) -> None:
        """Again when it has become larger or smaller; what there is no room for is gone."""
        _expect_short(name)
        try:
            self._kept.put("portal", name, portal.size_bytes)
        except Exception:
            self._portals.pop(name, None)
            raise
        self._portals[name] = portal

    def statement(self, name: str) -> Prepared:
        if name not in self._prepared:
            raise Troubled(Trouble("26000", f"there is no prepared statement {name[:63]!r}"))
        return self._prepared[name]

    def portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise Troubled(Trouble("34000", f"there is no portal {name[:63]!r}"))
        return self._portals[name]

    def cursor(self, name: str) -> Portal:
        portal = self._portals.get(name)
        if portal is None or not portal.cursor:
            raise Troubled(Trouble("34000", f"there is no cursor {name[:63]!r}"))
        return portal

    def drop(self, kind: str, name: str) -> None:
        """A ``cursor`` must be there; a ``statement`` or ``portal`` need not. All, without a name for it."""
        if kind == "cursor":
            for one in [name] if name else [one for one, portal in self._portals.items() if portal.cursor]:
                self.cursor(one)
                self.drop_portal(one)
        elif not name:
            for one in [*self._prepared]:
                self.drop_statement(one)
        else:
            self.drop_statement(name)

    def drop_statement(self, name: str) -> None:
        self._prepared.pop(name, None)
        self._kept.drop("statement", name)

    def drop_portal(self, name: str) -> None:
        self._portals.pop(name, None)
        self._kept.drop("portal", name)

    def end_transaction(self) -> None:
        """Cursors that are held stay."""
        for name in [one for one, portal in self._portals.items() if not portal.hold]:
            self.drop_portal(name)

    def clear(self) -> None:
        self._prepared.clear()
        self._portals.clear()
        self._kept.clear()


def _expect_short(name: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if size > NAME_BYTES_MAX:
        raise Troubled(
            Trouble(
                *("42622", f"the name {name[:20]!r}... has {size} bytes (limit {NAME_BYTES_MAX})"),
                hint="use a shorter name for the statement, portal or cursor",
            )
        )
