"""Runs SQL statements on the server, over views of all stores. The result has a position for each view."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.model.codec.json_text import NumberText, parse
from headrace.model.codec.scalar_text import bytes_from, date_from, digits_from, time_from
from headrace.model.errors import ValueDoesNotFit, needing
from headrace.remote.errors import InvalidResponse, Position
from headrace.remote.exchange import Reply, Steps, json_of
from headrace.remote.session import After, Session
from headrace.remote.values import body_of

__all__ = ["SqlRows", "Statement", "arrow", "rows"]

ARROW = "application/vnd.apache.arrow.stream"
_positions = msgspec.json.Decoder(dict[str, Position]).decode


@dataclass(frozen=True, slots=True)
class Statement:
    """``parameters`` are the values of $1, $2, …"""

    sql: str
    parameters: Sequence[Any] = ()
    after: After = ""
    wait_s: float | None = None

    @property
    def name(self) -> str:
        """The name under which ``OwnWrites`` stores this statement's tokens. For a view it uses the view's name."""
        return f"sql {hashlib.sha256(self.sql.encode()).hexdigest()}"

    @property
    def body(self) -> bytes:
        return body_of({"sql": self.sql, "parameters": list(self.parameters)})


@dataclass(frozen=True, slots=True)
class SqlRows:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    """Tuples, not dicts, because a statement can return the same column name twice."""
    positions: dict[str, Position]
    """Positions by view."""

    def dicts(self) -> list[dict[str, Any]]:
        if len(set(self.columns)) < len(self.columns):
            raise InvalidResponse(
                f"two columns have the same name: {', '.join(self.columns)}",
                hint="rename one of them: SELECT a AS b",
            )
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)


class _Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class _Response(msgspec.Struct, frozen=True):
    positions: dict[str, Position]
    columns: list[_Column]
    rows: msgspec.Raw


def rows(session: Session, statement: Statement) -> Steps:
    reply: Reply = yield from _send(session, statement, "json")
    response: _Response = json_of(reply, _Response)
    readers = [_reader(column.type) for column in response.columns]
    try:
        decoded = [
            tuple(None if value is None else read(value) for read, value in zip(readers, row, strict=True))
            for row in parse(bytes(response.rows))
        ]
    except (ValueDoesNotFit, ValueError, ArithmeticError, TypeError) as error:
        raise InvalidResponse(f"a row does not match its columns: {error}") from None
    return SqlRows([column.name for column in response.columns], decoded, response.positions)


def arrow(session: Session, statement: Statement) -> Steps:
    """Return the result as a ``pyarrow.Table``. Its schema metadata contains the positions."""
    with needing("notebook", "pyarrow"):
        import pyarrow as pa
    reply: Reply = yield from _send(session, statement, "arrow")
    try:
        table = pa.ipc.open_stream(reply.body).read_all()
        positions = _positions(reply.headers.get("headrace-positions", "{}"))
    except (pa.ArrowInvalid, msgspec.DecodeError) as error:
        raise InvalidResponse(f"the response is not an Arrow table: {error}") from None
    tokens = {f"headrace.position.{view}": position.token for view, position in positions.items()}
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **tokens})


def _send(session: Session, statement: Statement, result_format: str) -> Steps:
    return session.read(
        statement.name,
        "/v1/sql",
        {"format": result_format},
        statement.after,
        statement.wait_s,
        body=statement.body,
    )


def _reader(kind: str) -> Callable[[Any], Any]:
    """Return the converter for a DuckDB type."""
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
    return _json_value


def _json_value(value: Any) -> Any:
    match value:
        case NumberText():
            return int(value) if value.lstrip("-").isdecimal() else float(value)
        case list():
            return [_json_value(item) for item in value]
        case dict():
            return {name: _json_value(item) for name, item in value.items()}
    return value
