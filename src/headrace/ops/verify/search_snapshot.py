"""A snapshot of a view in a full-text index.

``<view>/catalog`` has numbered files. The last file names the folder that serves the view. That folder is a tantivy
index. The document with the key ``standing`` has the position, and every other document has a row as JSON. A searcher
reads one commit, so position and rows belong together. After the index is opened, the catalog is read again, to check
that the folder still serves the view.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import tantivy

from headrace.model.kinds import Field, Scalar
from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import StoreUnreadable
from headrace.ops.verify.plain_rows import Value, column_type
from headrace.ops.verify.snapshot import StoreSnapshot, not_serving, snapshot_of

__all__ = ["read_search"]

_ATTEMPTS_MAX = 20
_BUCKETS = 1_024
_ROWS_PER_QUERY = 20_000
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf")}


def read_search(folder: Path, path: Path, view: str) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    view_dir = path / view
    with _translate_errors(view_dir):
        index = _open_index(view_dir, view)
        searcher = index.searcher()
        state = msgspec.json.decode(_state_document(view_dir, index, searcher))
        snapshot = snapshot_of(str(path), view, state["position"], state["shape"])
    connection = Scratch.open(folder)
    try:
        columns = [(field.name, column_type(field)) for field in snapshot.fields]
        scratch = Scratch(connection, columns, snapshot.key)
        with _translate_errors(view_dir):
            scratch.put("found", _rows(view_dir, index, searcher, snapshot.fields))
    except BaseException:
        connection.close()
        raise
    if scratch.count("found") != searcher.num_docs - 1:
        connection.close()
        raise StoreUnreadable(
            f"the index of view {view} in {view_dir} has duplicate keys: {searcher.num_docs - 1} documents,"
            f" {scratch.count('found')} keys",
            hint="recreate the index with headrace view rebuild",
        )
    return snapshot, scratch


def _open_index(view_dir: Path, view: str) -> tantivy.Index:
    for _ in range(_ATTEMPTS_MAX):
        folder = _serving_folder(view_dir)
        if folder is None:
            raise not_serving(view, str(view_dir))
        try:
            index = tantivy.Index.open(str(folder))
        except ValueError:
            if _serving_folder(view_dir) == folder:
                raise
            continue
        if _serving_folder(view_dir) == folder:
            return index
    raise StoreUnreadable(f"{view_dir} changes faster than it can be read", hint="try again")


def _serving_folder(view_dir: Path) -> Path | None:
    for _ in range(_ATTEMPTS_MAX):
        versions = sorted(view_dir.glob("catalog/*.json"))
        if not versions:
            return None
        with contextlib.suppress(FileNotFoundError):
            name = msgspec.json.decode(versions[-1].read_bytes())["serving"]
            return view_dir / name if name else None
    raise StoreUnreadable(f"{view_dir} changes faster than it can be read", hint="try again")


def _state_document(view_dir: Path, index: tantivy.Index, searcher: tantivy.Searcher) -> Any:
    query = tantivy.Query.term_query(index.schema, "_headrace_key", "standing", index_option="basic")
    hits = searcher.search(query, 2).hits
    if len(hits) != 1:
        raise StoreUnreadable(
            f"the index in {view_dir} has {len(hits)} positions instead of one",
            hint="recreate the index with headrace view rebuild",
        )
    return _stored_row(searcher, hits[0][1])


def _rows(
    view_dir: Path, index: tantivy.Index, searcher: tantivy.Searcher, fields: tuple[Field, ...]
) -> Iterator[tuple[Value, ...]]:
    """Read the rows in parts. Every row has a number below 1024 in ``_headrace_bucket``; the position has no bucket."""
    queries = (
        [tantivy.Query.range_query(index.schema, "_headrace_bucket", tantivy.FieldType.Unsigned, 0, _BUCKETS)]
        if searcher.num_docs <= _ROWS_PER_QUERY
        else (
            tantivy.Query.term_query(index.schema, "_headrace_bucket", bucket) for bucket in range(_BUCKETS)
        )
    )
    names = [field.name for field in fields]
    for query in queries:
        limit = min(searcher.num_docs, _ROWS_PER_QUERY) + 1
        while len(hits := searcher.search(query, limit, count=False).hits) == limit:
            # tantivy allocates memory for the whole limit, so the limit starts small.
            limit *= 4
        for _, address in hits:
            row = msgspec.json.decode(_stored_row(searcher, address))
            if list(row) != names:
                raise StoreUnreadable(
                    f"a document of the index in {view_dir} has wrong columns: {', '.join(row)}",
                    hint="recreate the index with headrace view rebuild",
                )
            yield tuple(_scratch_value(field, row[field.name]) for field in fields)


def _scratch_value(field: Field, value: Any) -> Any:
    if field.kind == Scalar("float"):
        return _INFINITE.get(value, value) if isinstance(value, str) else value
    if field.kind == Scalar("bytes") and value is not None:
        return base64.b64decode(value)
    return int(value) if isinstance(value, bool) else value


def _stored_row(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> Any:
    return searcher.doc(address).get_first("_headrace_row")


@contextlib.contextmanager
def _translate_errors(view_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise StoreUnreadable(
            f"cannot read {view_dir}: {error}",
            hint="if the index is damaged, move its folder away: the follower rebuilds the view from the log",
        ) from error
