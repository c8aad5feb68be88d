"""A row as a document of an index, and back.

    _headrace_key      which row it is: a term, by which it is replaced and deleted
    _headrace_row      the row as JSON, by the names of its columns; stored, not indexed
    _headrace_bucket   a number below 1024 that follows from the key, so that all rows can be read some at a time
    one per searched column, under its name: words, in lower case and without accents

JSON has no infinite numbers: they are texts, as in the log. Bytes are base64. So every value comes back as it was.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import tantivy

from headrace.model.kinds import Choice, Field, Plain
from headrace.views.errors import ShapeRefused
from headrace.views.position import Shape
from headrace.views.rows import Row, Value

__all__ = [
    "BUCKET",
    "BUCKETS",
    "KEY",
    "ROW",
    "TOKENIZER",
    "Documents",
    "analyzer",
    "field_name",
    "searched_of",
]

KEY, ROW, BUCKET = "_headrace_key", "_headrace_row", "_headrace_bucket"
TOKENIZER = "headrace_words"
BUCKETS = 1_024
_TERM_BYTES_MAX = 1_000
_WORD_BYTES_MAX = 200
_INT_MAX = 2**63
# Names that the index has itself, or does not take.
_OTHERWISE = re.compile(r"_+headrace_|_*-|_*$")
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


def analyzer() -> tantivy.TextAnalyzer:
    """Words are letters and digits side by side. Every ``Index`` object must be given it before it is asked."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for one in (
        tantivy.Filter.remove_long(_WORD_BYTES_MAX),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
    ):
        builder = builder.filter(one)
    return builder.build()


def searched_of(view: str, shape: Shape, fields: Sequence[str]) -> tuple[str, ...]:
    """The columns whose words can be searched for: those that are named, or all texts."""
    absent = [name for name in fields if name not in shape.names]
    if absent:
        raise ShapeRefused(
            f"view {view!r} is searched by {absent[0]!r}, which is not a column",
            hint=f"the columns are {', '.join(shape.names)}; name some in Search(fields=[…])",
        )
    return tuple(fields) or tuple(one.name for one in shape.fields if _is_text(one))


def _is_text(field: Field) -> bool:
    return field.kind == Plain("text") or isinstance(field.kind, Choice)


def field_name(column: str) -> str:
    """Of the index; a column that cannot have its name there gets a line in front."""
    return f"_{column}" if _OTHERWISE.match(column) else column


class Documents:
    def __init__(self, shape: Shape, searched: Sequence[str]) -> None:
        self._names = shape.names
        kinds = [one.kind.name if isinstance(one.kind, Plain) else "" for one in shape.fields]
        self._ints = [at for at, kind in enumerate(kinds) if kind == "int"]
        self._floats = [at for at, kind in enumerate(kinds) if kind == "float"]
        self._bytes = [at for at, kind in enumerate(kinds) if kind == "bytes"]
        self._searched = [(shape.names.index(name), field_name(name)) for name in searched]
        self._key_places = shape.key_places
        self.names = [field for _, field in self._searched]

    def schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(KEY, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(ROW, stored=True)
        builder.add_unsigned_field(BUCKET, indexed=True)
        for name in self.names:
            builder.add_text_field(name, tokenizer_name=TOKENIZER)
        return builder.build()

    def term(self, key: Row) -> str:
        """A key is short or told by its hash: terms have a greatest length, and what is longer is left out."""
        text = _encode([_number(one) if isinstance(one, float) else one for one in key])
        if len(text) <= _TERM_BYTES_MAX:
            return "=" + text.decode()
        return "#" + hashlib.sha256(text).hexdigest()

    def document(self, row: Row, stored: bytes | None = None) -> tuple[str, tantivy.Document]:
        """With its term. ``stored`` is in the row's place, for who has the row. Raises OverflowError or
        UnicodeEncodeError for what no index can hold.
        """
        term = self.term(tuple(row[at] for at in self._key_places))
        made = tantivy.Document()
        made.add_text(KEY, term)
        made.add_unsigned(BUCKET, zlib.crc32(term.encode()) % BUCKETS)
        made.add_bytes(ROW, self.told(row) if stored is None else stored)
        for at, name in self._searched:
            value = row[at]
            if value is not None:
                made.add_text(name, value if isinstance(value, str) else _words(value))
        return term, made

    def told(self, row: Row) -> bytes:
        values: list[Any] = list(row)
        for at in self._ints:
            if values[at] is not None and not -_INT_MAX <= values[at] < _INT_MAX:
                raise OverflowError(f"{self._names[at]} is {values[at]}, which has more than 64 bits")
        for at in self._floats:
            if isinstance(values[at], float) and math.isinf(values[at]):
                values[at] = _number(values[at])
        return _encode(dict(zip(self._names, values, strict=True)))

    def row(self, told: bytes) -> Row:
        values = list(_decode(told).values())
        for at in self._floats:
            if values[at] in ("Infinity", "-Infinity"):
                values[at] = float(values[at])
        for at in self._bytes:
            if values[at] is not None:
                values[at] = base64.b64decode(values[at])
        return tuple(values)


def _number(value: float) -> float | str:
    """With one zero, as a key has it."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value + 0.0


def _words(value: Value) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
