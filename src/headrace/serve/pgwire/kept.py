"""What connections keep between two messages: statements that were prepared, and answers that were not sent whole.

Clients decide how much that is, so there is an end to it: for each, and for all together.
"""

from __future__ import annotations

from headrace.serve.sql.errors import SqlTooMuch

__all__ = ["Kept", "KeptByAll"]


class KeptByAll:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class Kept:
    """Of one connection. What is named again takes the place of what it was."""

    def __init__(self, all_of_them: KeptByAll, bytes_max: int, count_max: int) -> None:
        self._all = all_of_them
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._sizes: dict[tuple[str, str], int] = {}
        self._bytes = 0

    def put(self, kind: str, name: str, size: int) -> None:
        self.drop(kind, name)
        if len(self._sizes) >= self._count_max:
            raise SqlTooMuch(
                f"a connection keeps at most {self._count_max} statements and portals", hint="close some"
            )
        if self._bytes + size > self._bytes_max:
            raise SqlTooMuch(
                f"a connection keeps at most {self._bytes_max} bytes of statements and unsent rows",
                hint="fetch what was asked for, or close it",
            )
        if self._all.bytes + size > self._all.bytes_max:
            raise SqlTooMuch(
                f"all connections together keep at most {self._all.bytes_max} bytes of unsent rows",
                hint="ask again in a moment, or without a cursor",
            )
        self._sizes[kind, name] = size
        self._bytes += size
        self._all.bytes += size

    def drop(self, kind: str, name: str) -> None:
        size = self._sizes.pop((kind, name), 0)
        self._bytes -= size
        self._all.bytes -= size

    def clear(self) -> None:
        self._all.bytes -= self._bytes
        self._bytes = 0
        self._sizes.clear()
