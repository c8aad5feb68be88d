"""A view's columns: what its rows are read as, and what they are in a table of Arrow or pandas.

text, enum      str          string            time     datetime (UTC)     timestamp, microseconds, UTC
int             int          int64             date     date               date32
float           float        double            bytes    bytes              binary
bool            bool         bool              list     list               list
exact number    Decimal      decimal128, string beyond 38 digits
record          dict         struct            map      dict               map of string
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import SchemaError
from headrace.model.extras import needing
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema
from headrace.model.schema_json import fields_from_json
from headrace.model.values import Codec
from headrace.remote.errors import AnswerUnfit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "data_frame"]

_DIGITS_MAX = 38
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True)
class Columns:
    fields: tuple[Field, ...]
    key: tuple[str, ...] = ()
    _codec: Codec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codec", Codec(Schema("row", self.fields)))

    @classmethod
    def told(cls, columns: Sequence[dict[str, Any]], key: Sequence[str] = ()) -> Columns:
        """As a server describes them. Every one may be null: a row shows what is, not what was declared."""
        try:
            fields = [replace(one, optional=True, default=None) for one in fields_from_json(list(columns))]
            found = cls(tuple(fields), tuple(key))
        except (SchemaError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise AnswerUnfit(
                f"the server tells of columns that nobody knows: {error}",
                hint="is it of a later release? then update this client",
            ) from None
        if not set(key) <= set(found.names):
            raise AnswerUnfit(f"the key {', '.join(key)} is of columns that the server does not tell of")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.fields)

    def are_of(self, raw: bytes | msgspec.Raw) -> bool:
        """Whether a row has just these columns."""
        try:
            return set(_names(raw)) == set(self.names)
        except msgspec.DecodeError:
            return False

    def rows(self, raws: Iterable[bytes | msgspec.Raw]) -> list[dict[str, Any]]:
        """Raises ValueDoesNotFit for what is no row of these columns."""
        return [self._codec.decode(bytes(one)) for one in raws]

    def key_is_text(self) -> bool:
        kinds = [one.kind for one in self.fields if one.name in self.key]
        return len(kinds) == 1 and (kinds[0] == Plain("text") or isinstance(kinds[0], Choice))

    def arrow(self, rows: Sequence[dict[str, Any]], metadata: dict[str, str] | None = None) -> pa.Table:
        with needing("notebook", "pyarrow"):
            import pyarrow as pa
        types = [_type(one.kind) for one in self.fields]
        schema = pa.schema(
            [pa.field(one.name, kind) for one, kind in zip(self.fields, types, strict=True)],
            metadata=metadata,
        )
        arrays = [
            pa.array([_cell(one.kind, row[one.name]) for row in rows], kind)
            for one, kind in zip(self.fields, types, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def data_frame(table: pa.Table) -> Any:
    """For pandas. Whole numbers and truth values stay such where some are null; ``attrs`` has the positions."""
    with needing("notebook", "pandas"):
        import pandas as pd
    import pyarrow as pa

    nullable = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame = table.to_pandas(types_mapper=nullable.get)
    told = table.schema.metadata or {}
    begin = b"headrace.position."
    frame.attrs["headrace.positions"] = {
        name.removeprefix(begin).decode(): token.decode()
        for name, token in told.items()
        if name.startswith(begin)
    }
    return frame


def _type(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    match kind:
        case Plain(name):
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
        case Choice():
            return pa.string()
        case Many(of):
            return pa.list_(_type(of))
        case Named(of):
            return pa.map_(pa.string(), _type(of))
        case Record(fields):
            return pa.struct([pa.field(one.name, _type(one.kind)) for one in fields])


def _cell(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case Digits(precision) if precision > _DIGITS_MAX:
            return format(value, "f")
        case Many(of):
            return [_cell(of, one) for one in value]
        case Named(of):
            return [(name, _cell(of, one)) for name, one in value.items()]
        case Record(fields):
            return {one.name: _cell(one.kind, value.get(one.name)) for one in fields}
    return value
