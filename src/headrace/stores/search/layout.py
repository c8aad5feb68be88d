"""The layout of a full-text index, in which each row is one document.

A document has these fields:

    _headrace_key      a term that identifies the row, to replace and delete it
    _headrace_row      the row as JSON, by column name; stored, but not indexed
    _headrace_bucket   a number below 1024, derived from the key, to read all rows in parts
    <column>           for each searched column: its words, in lower case and without accents

JSON has no infinite numbers, so they are texts, as in the log. Bytes are in base64. So every value can be decoded.

The state of the view is a document of the same index, with the key ``standing``. A commit of the index replaces the
file ``meta.json``. So every reader gets the state and the rows of the same commit. All other files of an index never
change after they are written, so a copy of an index shares them by hard links.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import math
import os
import re
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tantivy

from headrace.files import DIR_MODE, make_private_dir
from headrace.model.kinds import Enum, Field, Scalar
from headrace.stores.catalog import sync_folder, write_synced
from headrace.stores.errors import SchemaRefused
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row, Value

__all__ = [
    "BUCKET",
    "BUCKETS",
    "CATALOG",
    "KEY",
    "ROW",
    "STATE_KEY",
    "TOKENIZER",
    "Documents",
    "StateDocument",
    "analyzer",
    "copy_index",
    "field_name",
    "opstamp_of",
    "searched_columns",
]

CATALOG = "catalog"
KEY, ROW, BUCKET = "_headrace_key", "_headrace_row", "_headrace_bucket"
STATE_KEY = "standing"
TOKENIZER = "headrace_words"
BUCKETS = 1_024
_TERM_BYTES_MAX = 1_000
_WORD_BYTES_MAX = 200
_INT_MAX = 2**63
# Names that the index uses itself or does not accept.
_RESERVED = re.compile(r"_+headrace_|_*-|_*$")
_FILE_SUFFIXES = ("idx", "pos", "term", "store", "fast", "fieldnorm")
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP}
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class StateDocument(msgspec.Struct, frozen=True):
    position: Position
    schema: str = msgspec.field(name="shape")
    rebuild_requests: int = msgspec.field(name="wish")
    reason: str
    searched: list[str]

    @property
    def state(self) -> ViewState:
        schema = ViewSchema.parse(self.schema)
        return ViewState(
            schema, self.position, self.rebuild_requests, self.reason, searched=tuple(self.searched)
        )


def analyzer() -> tantivy.TextAnalyzer:
    """Return the analyzer, which splits a text into words of letters and digits. Register it with every ``Index``
    object before its first query.
    """
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for text_filter in (
        tantivy.Filter.remove_long(_WORD_BYTES_MAX),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
    ):
        builder = builder.filter(text_filter)
    return builder.build()


def searched_columns(view: str, schema: ViewSchema, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to index: those in ``fields``, or all text columns if ``fields`` is empty."""
    absent = [name for name in fields if name not in schema.names]
    if absent:
        raise SchemaRefused(
            f"view {view!r} declares the search field {absent[0]!r}, which is not a column",
            hint=f"the columns are {', '.join(schema.names)}; use these names in Search(fields=[…])",
        )
    return tuple(fields) or tuple(field.name for field in schema.fields if _is_text(field))


def _is_text(field: Field) -> bool:
    return field.kind == Scalar("text") or isinstance(field.kind, Enum)


def field_name(column: str) -> str:
    """Return the name of the column's field in the index. A reserved name gets an underscore as a prefix."""
    return f"_{column}" if _RESERVED.match(column) else column


class Documents:
    """Converts rows of one schema to documents, and documents to rows."""

    def __init__(self, schema: ViewSchema, searched: Sequence[str]) -> None:
        self._names = schema.names
        kinds = [field.kind.name if isinstance(field.kind, Scalar) else "" for field in schema.fields]
        self._ints = [index for index, kind in enumerate(kinds) if kind == "int"]
        self._floats = [index for index, kind in enumerate(kinds) if kind == "float"]
        self._bytes = [index for index, kind in enumerate(kinds) if kind == "bytes"]
        self._searched = [(schema.names.index(name), field_name(name)) for name in searched]
        self._key_indexes = schema.key_indexes
        self.names = [field for _, field in self._searched]

    def index_schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(KEY, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(ROW, stored=True)
        builder.add_unsigned_field(BUCKET, indexed=True)
        for name in self.names:
            builder.add_text_field(name, tokenizer_name=TOKENIZER)
        return builder.build()

    def term(self, key: Row) -> str:
        """Return the term for a key. A long key becomes a hash, because the index drops terms that are too long."""
        text = _encode([_json_float(value) if isinstance(value, float) else value for value in key])
        if len(text) <= _TERM_BYTES_MAX:
            return "=" + text.decode()
        return "#" + hashlib.sha256(text).hexdigest()

    def document(self, row: Row, stored: bytes | None = None) -> tuple[str, tantivy.Document]:
        """Return the row's term and document. If ``stored`` is set, the document stores it instead of the row.

        Raises OverflowError or UnicodeEncodeError if the index does not support a value.
        """
        term = self.term(tuple(row[index] for index in self._key_indexes))
        document = tantivy.Document()
        document.add_text(KEY, term)
        document.add_unsigned(BUCKET, zlib.crc32(term.encode()) % BUCKETS)
        document.add_bytes(ROW, self.encode(row) if stored is None else stored)
        for index, name in self._searched:
            value = row[index]
            if value is not None:
                document.add_text(name, value if isinstance(value, str) else _words(value))
        return term, document

    def encode(self, row: Row) -> bytes:
        values: list[Any] = list(row)
        for index in self._ints:
            if values[index] is not None and not -_INT_MAX <= values[index] < _INT_MAX:
                raise OverflowError(f"{self._names[index]} is {values[index]}, which has more than 64 bits")
        for index in self._floats:
            if isinstance(values[index], float) and math.isinf(values[index]):
                values[index] = _json_float(values[index])
        return _encode(dict(zip(self._names, values, strict=True)))

    def decode(self, stored: bytes) -> Row:
        values = list(_decode(stored).values())
        for index in self._floats:
            if values[index] in ("Infinity", "-Infinity"):
                values[index] = float(values[index])
        for index in self._bytes:
            if values[index] is not None:
                values[index] = base64.b64decode(values[index])
        return tuple(values)


def _json_float(value: float) -> float | str:
    """Return the number for JSON. -0.0 becomes 0.0, because both must be the same key."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value + 0.0


def _words(value: Value) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


# Files


class _Deletes(msgspec.Struct):
    opstamp: int


class _Segment(msgspec.Struct):
    segment_id: str
    deletes: _Deletes | None = None


class _Meta(msgspec.Struct):
    segments: list[_Segment]
    opstamp: int


def opstamp_of(folder: Path) -> int:
    """Return the number that identifies the last commit."""
    return msgspec.json.decode((folder / "meta.json").read_bytes(), type=_Meta).opstamp


def copy_index(old: Path, new: Path) -> None:
    """Create ``new`` as a copy that shares its files with ``old``. Raise FileNotFoundError if the index has missing
    files.

    If the writer of ``old`` commits during the copy and removes files, the copy starts again.
    """
    meta = (old / "meta.json").read_bytes()
    while True:
        shutil.rmtree(new, ignore_errors=True)
        try:
            _copy_commit(old, new, meta)
        except FileNotFoundError:
            newer = (old / "meta.json").read_bytes()
            if newer == meta:
                raise
            meta = newer
            continue
        return


def _copy_commit(old: Path, new: Path, meta: bytes) -> None:
    make_private_dir(new.parent)
    new.mkdir(DIR_MODE)
    names = [name for segment in msgspec.json.decode(meta, type=_Meta).segments for name in _files(segment)]
    for name in names:
        _link_or_copy(old / name, new / name)
    # This file lists the files that tantivy may remove when it no longer needs them.
    managed: list[Any] = [*names, "meta.json"]
    write_synced(new / ".managed.json", msgspec.json.encode(managed))
    write_synced(new / "meta.json", meta)
    sync_folder(new)
    sync_folder(new.parent)


def _files(segment: _Segment) -> list[str]:
    stem = segment.segment_id.replace("-", "")
    names = [f"{stem}.{suffix}" for suffix in _FILE_SUFFIXES]
    return names + ([f"{stem}.{segment.deletes.opstamp}.del"] if segment.deletes else [])


def _link_or_copy(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        write_synced(new, old.read_bytes())
