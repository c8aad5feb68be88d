"""A prepared statement, and a portal: what it is asked with, and how much of its answer was sent."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import msgspec

from headrace.serve.pgwire.frames import Described
from headrace.serve.pgwire.parameters import Value
from headrace.serve.pgwire.rows import SIZES
from headrace.serve.sql.messages import Answered

__all__ = ["Portal", "Prepared"]


@dataclass(slots=True)
class Prepared:
    sql: str
    oids: list[int]

    def looked_at(self) -> Portal:
        """Asks for what its rows have, whatever its parameters are, and for no row."""
        count = max([len(self.oids), *map(int, re.findall(r"\$([0-9]{1,4})", self.sql))])
        oids = [*self.oids, *[0] * (count - len(self.oids))]
        return Portal(Prepared(self.sql, oids), [None] * count, [], looks=True)


@dataclass(slots=True)
class Portal:
    prepared: Prepared
    values: list[Value]
    forms: list[int]
    name: str | None = None
    """None if it is not kept."""
    looks: bool = False
    """Whether only its columns are asked for."""
    cursor: bool = False
    hold: bool = False
    skipped: int = 0
    """Rows that a cursor has moved past before it had any."""
    answered: Answered | None = None
    rows: list[bytes] | None = None
    """What is left, where it is sent in portions."""
    done: bool = False

    columns: list[Described] = field(default_factory=list)

    def is_answered(self, answered: Answered) -> None:
        self.answered = answered
        forms = self.forms * len(answered.columns) if len(self.forms) == 1 else self.forms
        self.columns = [
            Described(one.name, one.oid, SIZES.get(one.oid, -1), bool(forms) and forms[at] == 1)
            for at, one in enumerate(answered.columns)
        ]

    def some(self, rows_max: int) -> tuple[bytes, int]:
        """The next rows, and how many they are; then ``done`` tells whether they were the last."""
        assert self.answered is not None
        if self.done:
            return b"", 0
        if rows_max == 0 and self.rows is None:
            self.done, body = True, self.answered.body
            self.answered = msgspec.structs.replace(self.answered, body=b"")
            return body, self.answered.rows
        if self.rows is None:
            # From the last to the first: what is sent is taken from the end.
            self.rows = _rows_of(self.answered.body)[::-1]
            self.answered = msgspec.structs.replace(self.answered, body=b"")
        count = len(self.rows) if rows_max == 0 else min(rows_max, len(self.rows))
        some = [self.rows.pop() for _ in range(count)]
        self.done = not self.rows
        return b"".join(some), count


def _rows_of(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from(">i", body, at + 1)
        found.append(body[at : at + 1 + length])
        at += 1 + length
    return found
