"""A prepared statement, and a portal: what it is asked with, and how much of its answer was sent."""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass, field

import msgspec

from headrace.serve.pgwire.frames import Described
from headrace.serve.pgwire.parameters import Value
from headrace.serve.pgwire.rows import SIZES
from headrace.serve.sql.messages import Answered

__all__ = ["Portal", "Prepared"]

_ENTRY_BYTES = 1_000
"""The objects of a statement or portal, without what a client puts into them."""
_INT_BYTES = 40
_COLUMN_BYTES = 300


@dataclass(slots=True)
class Prepared:
    sql: str
    oids: list[int]

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + _text_bytes(self.sql) + _INT_BYTES * len(self.oids)

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
    sent_bytes: int = 0
    """Of the answer's rows, where they are sent in portions."""
    done: bool = False

    columns: list[Described] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """With its statement, which may have been closed or replaced since."""
        values = sum(map(_value_bytes, self.values)) + _INT_BYTES * len(self.forms)
        columns = sum(_COLUMN_BYTES + _text_bytes(column.name) for column in self.columns)
        rows = len(self.answered.body) if self.answered is not None else 0
        return _ENTRY_BYTES + self.prepared.size_bytes + values + columns + rows

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
        body, begin = self.answered.body, self.sent_bytes
        if rows_max == 0 and begin == 0:
            end, count = len(body), self.answered.rows
        else:
            end, count = begin, 0
            while end < len(body) and (rows_max == 0 or count < rows_max):
                (length,) = struct.unpack_from(">i", body, end + 1)
                end, count = end + 1 + length, count + 1
        self.sent_bytes = end
        if end == len(body):
            self.done = True
            self.answered = msgspec.structs.replace(self.answered, body=b"")
        return body[begin:end], count


def _text_bytes(text: str) -> int:
    """In memory: one wide character makes all of a text wide, and its UTF-8 is cached when it is encoded."""
    return sys.getsizeof(text) + (0 if text.isascii() else len(text.encode("utf-8", "replace")))


def _value_bytes(value: Value) -> int:
    if isinstance(value, list):
        return sum(8 + _value_bytes(element) for element in value)
    return 0 if value is None else _text_bytes(value)
