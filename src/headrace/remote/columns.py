"""The columns of a view: decodes rows to Python values, and converts them to Arrow and pandas.

Each line of the table has the type in the view, in Python and in Arrow:

text, enum      str          string            time     datetime (UTC)     timestamp, microseconds, UTC
int             int          int64             date     date               date32
float           float        double            bytes    bytes              binary
bool            bool         bool              list     list               list
decimal         Decimal      decimal128, or string for more than 38 digits
record          dict         struct            map      dict               map of string
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from headrace.model.codec.codec import Codec, new_codec
from headrace.model.errors import SchemaError, ValueDoesNotFit, needing
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema, fields_from_json, schema_of
from headrace.remote.errors import InvalidResponse

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "RowReader", "data_frame"]

_DIGITS_MAX = 38
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True)
class Columns:
    fields: tuple[Field, ...]
    key: tuple[str, ...] = ()
    _codec: Codec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codec", new_codec(Schema("row", self.fields)))

    @classmethod
    def from_json(cls, columns: Sequence[dict[str, Any]], key: Sequence[str] = ()) -> Columns:
        """Convert the server's description. Every column can be null, even if the app declares it as required."""
        try:
            fields = [
                replace(column, optional=True, default=None) for column in fields_from_json(list(columns))
            ]
            result = cls(tuple(fields), tuple(key))
        except (SchemaError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidResponse(
                f"the server sent columns of an unknown type: {error}",
                hint="update this client, because the server may be newer",
            ) from None
        if not set(key) <= set(result.names):
            raise InvalidResponse(f"the server did not describe all columns of the key {', '.join(key)}")
        return result

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.fields)

    def match(self, raw: bytes | msgspec.Raw) -> bool:
        """Return whether a row has exactly these columns."""
        try:
            return set(_names(raw)) == set(self.names)
        except msgspec.DecodeError:
            return False

    def rows(self, raws: Iterable[bytes | msgspec.Raw]) -> list[dict[str, Any]]:
        """Decode rows. Raise ValueDoesNotFit if a row does not match the columns."""
        return [self._codec.decode(bytes(raw)) for raw in raws]

    def key_is_text(self) -> bool:
        kinds = [column.kind for column in self.fields if column.name in self.key]
        return len(kinds) == 1 and (kinds[0] == Scalar("text") or isinstance(kinds[0], Enum))

    def arrow(self, rows: Sequence[dict[str, Any]], metadata: dict[str, str] | None = None) -> pa.Table:
        with needing("notebook", "pyarrow"):
            import pyarrow as pa
        types = [_type(column.kind) for column in self.fields]
        schema = pa.schema(
            [pa.field(column.name, kind) for column, kind in zip(self.fields, types, strict=True)],
            metadata=metadata,
        )
        arrays = [
            pa.array([_cell(column.kind, row[column.name]) for row in rows], kind)
            for column, kind in zip(self.fields, types, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def data_frame(table: pa.Table) -> Any:
    """Convert to a pandas DataFrame. Integers and booleans keep their type even with nulls. ``attrs`` has positions."""
    with needing("notebook", "pandas"):
        import pandas as pd
    import pyarrow as pa

    nullable = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame = table.to_pandas(types_mapper=nullable.get)
    metadata = table.schema.metadata or {}
    begin = b"headrace.position."
    frame.attrs["headrace.positions"] = {
        name.removeprefix(begin).decode(): token.decode()
        for name, token in metadata.items()
        if name.startswith(begin)
    }
    return frame


def _type(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    match kind:
        case Scalar(name):
            return {
                "text": pa.string(),
                "int": pa.int64(),
                "float": pa.float64(),
                "bool": pa.bool_(),
                "time": pa.timestamp("us", tz="UTC"),
                "date": pa.date32(),
                "bytes": pa.binary(),
            }[name]
        case Digits(precision, scale):
            return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else pa.string()
        case Enum():
            return pa.string()
        case List(of):
            return pa.list_(_type(of))
        case Map(of):
            return pa.map_(pa.string(), _type(of))
        case Record(fields):
            return pa.struct([pa.field(member.name, _type(member.kind)) for member in fields])


def _cell(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case Digits(precision) if precision > _DIGITS_MAX:
            return format(value, "f")
        case List(of):
            return [_cell(of, item) for item in value]
        case Map(of):
            return [(name, _cell(of, item)) for name, item in value.items()]
        case Record(fields):
            return {member.name: _cell(member.kind, value.get(member.name)) for member in fields}
    return value


T = TypeVar("T")
_BUILTIN_TYPES = (datetime, date, Decimal, bytes)


class RowReader(Generic[T]):
    """Converts values to the caller's class. ``kind`` is a dataclass or another type that msgspec supports, or None for
    dicts.
    """

    def __init__(self, kind: type[T] | None) -> None:
        self._kind = kind
        self._codec = new_codec(schema_of(kind)) if dataclasses.is_dataclass(kind) else None
        self.row: Callable[[dict[str, Any]], T] = self._convert if kind is not None else _identity

    def json(self, raw: bytes) -> T:
        """Decode a value of the log. Without a class, decimals become floats, because JSON has only one number type."""
        try:
            if self._codec is not None:
                return self._convert(self._codec.decode(raw))
            if self._kind is not None:
                return msgspec.json.decode(raw, type=self._kind)
            return cast(T, msgspec.json.decode(raw))
        except (ValueDoesNotFit, msgspec.DecodeError) as error:
            raise self._mismatch(error) from None

    def _convert(self, row: dict[str, Any]) -> T:
        assert self._kind is not None
        try:
            return msgspec.convert(row, self._kind, builtin_types=_BUILTIN_TYPES)
        except msgspec.ValidationError as error:
            raise self._mismatch(error) from None

    def _mismatch(self, error: Exception) -> InvalidResponse:
        name = getattr(self._kind, "__name__", "JSON")
        return InvalidResponse(
            f"a value does not match {name}: {error}", hint="read without the class to see the value"
        )


def _identity(row: dict[str, Any]) -> Any:
    return row
