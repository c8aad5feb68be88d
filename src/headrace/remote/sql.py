"""Conversations in SQL: one question over views of any stores, with a position for each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.extras import needing
from headrace.model.json_text import NumberText, parse
from headrace.model.texts import bytes_from, date_from, digits_from, time_from
from headrace.remote.errors import AnswerUnfit
from headrace.remote.exchange import Reply, Steps, json_of
from headrace.remote.plain import body_of
from headrace.remote.position import Position
from headrace.remote.session import After, Session

__all__ = ["SqlRows", "Statement", "arrow", "rows"]

ARROW = "application/vnd.apache.arrow.stream"
_positions = msgspec.json.Decoder(dict[str, Position]).decode


@dataclass(frozen=True, slots=True)
class Statement:
    """``parameters`` are values for $1, $2, …"""

    sql: str
    parameters: Sequence[Any] = ()
    after: After = ""
    wait_s: float | None = None

    @property
    def name(self) -> str:
        """By which is remembered what it has nothing to do with."""
        return f"sql {hashlib.sha256(self.sql.encode()).hexdigest()}"

    @property
    def body(self) -> bytes:
        return body_of({"sql": self.sql, "parameters": list(self.parameters)})


@dataclass(frozen=True, slots=True)
class SqlRows:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    """Columns of a statement need not have names of their own."""
    positions: dict[str, Position]
    """By view."""

    def dicts(self) -> list[dict[str, Any]]:
        if len(set(self.columns)) < len(self.columns):
            raise AnswerUnfit(
                f"two columns have one name: {', '.join(self.columns)}", hint="give them names: SELECT a AS b"
            )
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)


class _Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class _Told(msgspec.Struct, frozen=True):
    positions: dict[str, Position]
    columns: list[_Column]
    rows: msgspec.Raw


def rows(session: Session, statement: Statement) -> Steps:
    reply: Reply = yield from _answer(session, statement, "json")
    told: _Told = json_of(reply, _Told)
    readers = [_reader(one.type) for one in told.columns]
    try:
        found = [
            tuple(None if one is None else read(one) for read, one in zip(readers, row, strict=True))
            for row in parse(bytes(told.rows))
        ]
    except (ValueDoesNotFit, ValueError, ArithmeticError, TypeError) as error:
        raise AnswerUnfit(f"a row is not of its columns: {error}") from None
    return SqlRows([one.name for one in told.columns], found, told.positions)


def arrow(session: Session, statement: Statement) -> Steps:
    """A ``pyarrow.Table``, as the engine made it; the metadata of its schema has the positions."""
    with needing("notebook", "pyarrow"):
        import pyarrow as pa
    reply: Reply = yield from _answer(session, statement, "arrow")
    try:
        table = pa.ipc.open_stream(reply.body).read_all()
        positions = _positions(reply.headers.get("headrace-positions", "{}"))
    except (pa.ArrowInvalid, msgspec.DecodeError) as error:
        raise AnswerUnfit(f"the answer is no table: {error}") from None
    told = {f"headrace.position.{view}": one.token for view, one in positions.items()}
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **told})


def _answer(session: Session, statement: Statement, form: str) -> Steps:
    return session.read(
        statement.name,
        "/v1/sql",
        {"format": form},
        statement.after,
        statement.wait_s,
        body=statement.body,
    )


def _reader(kind: str) -> Callable[[Any], Any]:
    """By the engine's name of the type."""
    name = kind.partition("(")[0].upper()
    if name == "DECIMAL":
        return digits_from
    if name in ("DOUBLE", "FLOAT"):
        return float
    if name == "TIMESTAMP WITH TIME ZONE":
        return time_from
    if name == "DATE":
        return date_from
    if name == "BLOB":
        return bytes_from
    return _natural


def _natural(value: Any) -> Any:
    match value:
        case NumberText():
            return int(value) if value.lstrip("-").isdecimal() else float(value)
        case list():
            return [_natural(one) for one in value]
        case dict():
            return {name: _natural(one) for name, one in value.items()}
    return value
