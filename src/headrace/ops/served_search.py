"""What a full-text index serves of a view.

The folder is read as it is documented. ``<view>/catalog`` has numbered files, of which the last names the folder that
serves. In that folder is an index of tantivy: the document with the key ``standing`` tells the position, and every
other one has its row as JSON. One searcher sees one commit, so position and rows belong together; the catalog is read
again behind it, so that the folder was still the one that serves.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import tantivy

from headrace.model.kinds import Field, Plain
from headrace.ops.errors import NotServed, StoreUnreadable
from headrace.ops.plain_rows import Value, column_type
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served, served_of

__all__ = ["read_search"]

_TRIES = 20
_BUCKETS = 1_024
_AT_ONCE = 20_000
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf")}


def read_search(folder: Path, path: Path, view: str) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    home = path / view
    with _told(home):
        index = _index(home, view)
        searcher = index.searcher()
        said = msgspec.json.decode(_standing(home, index, searcher))
        served = served_of(str(path), view, said["position"], said["shape"])
    connection = Scratch.open(folder)
    try:
        columns = [(one.name, column_type(one)) for one in served.fields]
        scratch = Scratch(connection, columns, served.key)
        with _told(home):
            scratch.put("found", _rows(home, index, searcher, served.fields))
    except BaseException:
        connection.close()
        raise
    if scratch.count("found") != searcher.num_docs - 1:
        connection.close()
        raise StoreUnreadable(
            f"the index of view {view} in {home} has a key twice: {searcher.num_docs - 1} documents,"
            f" {scratch.count('found')} keys",
            hint="headrace view rebuild makes it anew",
        )
    return served, scratch


def _index(home: Path, view: str) -> tantivy.Index:
    for _ in range(_TRIES):
        folder = _serving(home)
        if folder is None:
            raise NotServed(
                f"view {view} does not serve in {home} yet", hint="it is being built, or nothing follows it"
            )
        try:
            index = tantivy.Index.open(str(folder))
        except ValueError:
            if _serving(home) == folder:
                raise
            continue
        if _serving(home) == folder:
            return index
    raise StoreUnreadable(f"{home} changes faster than it can be read", hint="try again")


def _serving(home: Path) -> Path | None:
    for _ in range(_TRIES):
        versions = sorted(home.glob("catalog/*.json"))
        if not versions:
            return None
        with contextlib.suppress(FileNotFoundError):
            named = msgspec.json.decode(versions[-1].read_bytes())["serving"]
            return home / named if named else None
    raise StoreUnreadable(f"{home} changes faster than it can be read", hint="try again")


def _standing(home: Path, index: tantivy.Index, searcher: tantivy.Searcher) -> Any:
    query = tantivy.Query.term_query(index.schema, "_headrace_key", "standing", index_option="basic")
    hits = searcher.search(query, 2).hits
    if len(hits) != 1:
        raise StoreUnreadable(
            f"the index in {home} has {len(hits)} positions, and must have one",
            hint="headrace view rebuild makes it anew",
        )
    return _stored(searcher, hits[0][1])


def _rows(
    home: Path, index: tantivy.Index, searcher: tantivy.Searcher, fields: tuple[Field, ...]
) -> Iterator[tuple[Value, ...]]:
    """Some at a time: every row has a number below 1024 in ``_headrace_bucket``, the position has none."""
    queries = (
        [tantivy.Query.range_query(index.schema, "_headrace_bucket", tantivy.FieldType.Unsigned, 0, _BUCKETS)]
        if searcher.num_docs <= _AT_ONCE
        else (tantivy.Query.term_query(index.schema, "_headrace_bucket", one) for one in range(_BUCKETS))
    )
    names = [one.name for one in fields]
    for query in queries:
        limit = min(searcher.num_docs, _AT_ONCE) + 1
        while len(hits := searcher.search(query, limit, count=False).hits) == limit:
            # Room is made for as many as are asked for.
            limit *= 4
        for _, address in hits:
            row = msgspec.json.decode(_stored(searcher, address))
            if list(row) != names:
                raise StoreUnreadable(
                    f"a document of the index in {home} has the columns {', '.join(row)}",
                    hint="headrace view rebuild makes it anew",
                )
            yield tuple(_plain(one, row[one.name]) for one in fields)


def _plain(field: Field, value: Any) -> Any:
    """As the comparison has it."""
    if field.kind == Plain("float"):
        return _INFINITE.get(value, value) if isinstance(value, str) else value
    if field.kind == Plain("bytes") and value is not None:
        return base64.b64decode(value)
    return int(value) if isinstance(value, bool) else value


def _stored(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> Any:
    return searcher.doc(address).get_first("_headrace_row")


@contextlib.contextmanager
def _told(home: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise StoreUnreadable(
            f"{home} cannot be read: {error}",
            hint="if it is damaged, move it away: the view is built again from the log",
        ) from error
